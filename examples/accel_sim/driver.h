/* driver.h: what the files of the driver share. The driver is the plug-in: it lives in the
 * host's process and has no way to device memory but commands. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "dovetail_plugin.h"
#include "wire.h"

#include <pthread.h>
#include <sys/types.h>

/* Device memory as the driver hands it out; what the host holds is a number that no host
 * pointer can be. */
typedef struct {
    uint64_t address, bytes; /* bytes 0: free; of imported memory the host's address */
    uint32_t kind;           /* DVP_MEMORY_... */
    uint64_t handle;
} sim_block;

/* A copy whose host side is still to be done. */
typedef struct sim_pending {
    struct sim_pending *next;
    unsigned char *host;
    uint64_t bytes, moved;
    uint32_t number; /* of its command */
    bool in;
} sim_pending;

struct dvp_device {
    int32_t index;
    pid_t process;
    int status; /* how the process ended */
    sim_shared *shared;
    pthread_mutex_t lock; /* of what follows; held briefly */
    bool gone;            /* the process has ended */
    sim_block *blocks;
    uint32_t block_count;
    bool numbered;    /* memory gets handles that come again for other memory */
    uint64_t imports; /* how much of the host's memory got a handle */
    int64_t used, limit, heap_used;
    bool taken[SIM_STREAMS];
    sim_pending *first[SIM_STREAMS], *last[SIM_STREAMS];
    dvp_stream *streams; /* all that are open, by which native handles are known again */
    dvp_graph *graphs[SIM_GRAPHS + 1]; /* by their numbers, from 1 */
    int64_t kernels; /* that were launched, counted from the last device_set of a fault */
};

struct dvp_stream {
    dvp_device *device;
    uint32_t number;
    sim_stream *wire;
    dvp_graph *capture; /* NULL: what it is given is done */
    bool imported;      /* the queue is another's */
    dvp_stream *next;
};

/* Commands that are noted; the device has them once they were launched. */
struct dvp_graph {
    dvp_device *device;
    uint32_t number; /* 1 to SIM_GRAPHS */
    sim_command *commands;
    uint32_t count, room;
    bool broken; /* it was given something that cannot be noted */
    bool sent;   /* on this stream, by the command of this number: */
    uint32_t stream, upto;
};

struct dvp_event {
    dvp_stream *stream; /* NULL: never recorded */
    uint32_t upto;
};

struct dvp_kernel {
    const char *name;
    uint32_t version;
    int32_t number;
};

extern const dvp_host *sim_host;

dvp_status sim_fail(dvp_error *error, dvp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- faults on demand (faults.c) ---- */

/* Every function of the table that can fail, and what the device can be told to do wrong. */
/* clang-format off */
#define SIM_FAULTS(X) \
    X(device_open) X(device_get) X(buffer_alloc) X(memory_alloc) X(memory_import) X(copy_in) X(copy_out) X(copy_between) \
    X(stream_create) X(stream_sync) X(event_create) X(event_record) X(event_wait) X(event_sync) \
    X(stream_import) X(stream_native) X(capture_begin) X(capture_end) X(graph_launch) \
    X(query_op) X(find_kernel) X(execute) X(constant_prepare) X(constant_pack) X(constant_accept) \
    X(kernel_fails) X(kernel_hangs) X(kernel_dies) X(kernel_lies) X(kernel_slow) \
    X(copy_fails) X(copy_hangs) X(copy_dies)
/* clang-format on */

enum {
#define X(name) SIM_AT_##name,
    SIM_FAULTS(X)
#undef X
        SIM_FAULT_COUNT
};

/* The status to fail with, or DVP_OK; counts the call. */
dvp_status sim_fault(int where, dvp_error *error);
/* What a command should do wrong. */
int32_t sim_command_fault(bool is_kernel);
/* "fault.execute" and so on: the n-th call from now fails; -n: with DVP_DEVICE_LOST. */
bool sim_set_fault(const char *name, int64_t value);

/* ---- memory (memory.c) ---- */

dvp_status sim_buffer_alloc(dvp_device *device, uint64_t bytes, void **memory,
                            dvp_error *error);
void sim_buffer_free(dvp_device *device, void *memory);
dvp_status sim_memory_alloc(dvp_device *device, uint32_t kind, uint64_t bytes, void **memory,
                            void **address, dvp_error *error);
dvp_status sim_memory_import(dvp_device *device, void *address, uint64_t bytes, void **memory,
                             dvp_error *error);
/* The address and the room of a place in a buffer; false with the error set where there is
 * none. */
bool sim_place(dvp_device *device, const void *memory, uint64_t offset, uint64_t *address,
               uint64_t *room, dvp_error *error);
dvp_status sim_buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                           dvp_error *error);
dvp_status sim_buffer_copy_peer(dvp_device *device, dvp_stream *stream, dvp_device *from,
                                const dvp_copy *copy, dvp_error *error);

/* ---- streams (queue.c) ---- */

dvp_status sim_stream_create(dvp_device *device, dvp_stream **stream, dvp_error *error);
void sim_stream_destroy(dvp_device *device, dvp_stream *stream);
dvp_status sim_stream_sync(dvp_device *device, dvp_stream *stream, dvp_error *error);
dvp_status sim_stream_wait(dvp_device *device, dvp_stream *stream, uint64_t nanoseconds,
                           dvp_error *error);
dvp_status sim_event_create(dvp_device *device, dvp_event **event, dvp_error *error);
void sim_event_destroy(dvp_device *device, dvp_event *event);
dvp_status sim_event_record(dvp_device *device, dvp_event *event, dvp_stream *stream,
                            dvp_error *error);
dvp_status sim_event_sync(dvp_device *device, dvp_event *event, uint64_t nanoseconds,
                          dvp_error *error);
dvp_status sim_event_wait(dvp_device *device, dvp_stream *stream, dvp_event *event,
                          dvp_error *error);
/* A new struct for a queue; the lock is held. */
dvp_stream *sim_stream_of(dvp_device *device, uint32_t number);
/* Give the device a command; `pending` is its host side, or NULL, and is freed in the end. */
dvp_status sim_submit(dvp_stream *stream, const sim_command *command, sim_pending *pending,
                      dvp_error *error);
/* Whether the device's process still runs. */
dvp_status sim_alive(dvp_device *device, dvp_error *error);
void sim_drop_pending(dvp_device *device, uint32_t stream);

/* ---- graphs, and streams of the vendor's own (graph.c) ---- */

dvp_status sim_stream_import(dvp_device *device, void *native, dvp_stream **stream,
                             dvp_error *error);
dvp_status sim_stream_native(dvp_device *device, dvp_stream *stream, void **native,
                             dvp_error *error);
dvp_status sim_capture_begin(dvp_device *device, dvp_stream *stream, dvp_error *error);
dvp_status sim_capture_end(dvp_device *device, dvp_stream *stream, dvp_graph **graph,
                           dvp_error *error);
dvp_status sim_graph_launch(dvp_device *device, dvp_stream *stream, dvp_graph *graph,
                            dvp_error *error);
void sim_graph_free(dvp_device *device, dvp_graph *graph);
void sim_free_graphs(dvp_device *device);
/* Notes a command instead of sending it. */
dvp_status sim_note(dvp_stream *stream, const sim_command *command, sim_pending *pending,
                    dvp_error *error);
/* The open device of a number, for the vendor's own library; NULL: it is not open. */
dvp_device *sim_open_device(int32_t index);

/* ---- operations (ops.c) ---- */

dvp_status sim_query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                        dvp_error *error);
dvp_status sim_find_kernel(dvp_device *device, const char *name, uint32_t min_version,
                           uint32_t max_version, const dvp_kernel **kernel, uint32_t *version,
                           dvp_error *error);
dvp_status sim_execute(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                       const dvp_op *op, dvp_error *error);
dvp_status sim_constant_prepare(dvp_device *device, dvp_stream *stream, const dvp_op *op,
                                uint32_t input, void **memory, dvp_error *error);
dvp_status sim_constant_pack(dvp_device *device, const dvp_op *op, uint32_t input,
                             const void **packed, uint64_t *bytes, dvp_error *error);
void sim_packed_free(dvp_device *device, const void *packed);
dvp_status sim_constant_accept(dvp_device *device, const dvp_op *op, uint32_t input,
                               const void *packed, uint64_t bytes, dvp_error *error);
/* The kernel, the variant and the objection (NULL: none) to an operation (support.c). */
const char *sim_judge(const dvp_op *op, int32_t *kernel, int32_t *variant);
const dvp_attribute *sim_attribute_of(const dvp_op *op, const char *name);
dvp_status sim_put_tensor(dvp_device *device, const dvp_tensor *t, bool prepared,
                          sim_tensor *made, dvp_error *error);

/* ---- what quantised operands stand for (parameters.c) ---- */

bool sim_converts(const dvp_op *op);
bool sim_is_quantized(const dvp_op *op);
/* Of an input, or an output behind them; NULL: it is not quantised. */
const dvp_quantization *sim_quantization(const dvp_op *op, uint32_t operand);
/* The objection, NULL: none. */
const char *sim_judge_quantized(const dvp_op *op);
const char *sim_judge_conversion(const dvp_op *op);
dvp_status sim_put_parameters(dvp_device *device, const dvp_op *op, sim_command *c,
                              dvp_error *error);

#endif
