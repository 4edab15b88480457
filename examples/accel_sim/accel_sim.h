/* accel_sim.h: the vendor's own library, as programs use it beside dovetail: what CUDA is to a
 * GPU's plug-in. A device is there while dovetail has it open. */
#ifndef ACCEL_SIM_H
#define ACCEL_SIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ACCEL_SIM_API __attribute__((visibility("default")))

/* A queue of the device's; NULL: it is not open, or has no more of them. */
ACCEL_SIM_API void *accel_sim_stream_new(int device);
ACCEL_SIM_API void accel_sim_stream_free(void *stream);
/* Whether all that the stream was given is done. */
ACCEL_SIM_API int accel_sim_stream_is_done(void *stream);
/* 0, or -1 where something failed. */
ACCEL_SIM_API int accel_sim_stream_sync(void *stream);
/* Have the stream fill memory (as buffer_alloc names it) with one float, `count` times from
 * byte `offset` on. */
ACCEL_SIM_API int accel_sim_fill(void *stream, void *memory, uint64_t offset, int64_t count,
                                 double value);

#ifdef __cplusplus
}
#endif

#endif
