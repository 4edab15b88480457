/* accel.h: what the files of the simulated accelerator share. */
#ifndef ACCEL_H
#define ACCEL_H

#include "dovetail_plugin.h"

#include <stdbool.h>
#include <stdio.h>

#define MAX_RANK 8

/* Device memory is a table of blocks. What the host holds is a number that no host pointer can
 * be, so that either side notices when it is given the other's memory. */
typedef struct {
    unsigned char *bytes; /* NULL: free */
    uint64_t size;
} accel_block;

struct dvp_device {
    accel_block *blocks;
    size_t block_count;
    int64_t used, limit, executed, copies_in, copies_out;
    int64_t fail_at, lose_at; /* the number of the call that fails; 0: none */
    bool leaks, lost;
    bool waits; /* work is done only when somebody waits for it */
    FILE *log;  /* NULL: none */
};

typedef struct accel_work accel_work;

struct dvp_stream {
    dvp_device *device;
    accel_work *first;     /* what is still to do */
    uint64_t issued, done; /* how much it was given, and has done */
};

struct dvp_event {
    dvp_device *device;
    dvp_stream *recorded; /* NULL: never */
    uint64_t upto;        /* how much that stream had been given then */
};

struct dvp_kernel {
    const char *name;
    uint32_t version;
    dvp_status (*run)(dvp_device *device, const dvp_op *op, dvp_error *error);
};

/* Fills in an error and returns the status. */
dvp_status accel_fail(dvp_error *error, dvp_status status, const char *format, ...);

/* Whether the device still answers. */
dvp_status accel_alive(const dvp_device *device, dvp_error *error);

/* A copy or a kernel, now; and when its stream comes to it. */
dvp_status accel_copy(dvp_device *device, const dvp_copy *copy, dvp_error *error);
dvp_status accel_run(dvp_device *device, const dvp_kernel *kernel, const dvp_op *op,
                     dvp_error *error);
dvp_status accel_submit_copy(dvp_stream *stream, const dvp_copy *copy, dvp_error *error);
dvp_status accel_submit_kernel(dvp_stream *stream, const dvp_kernel *kernel, const dvp_op *op,
                               dvp_error *error);

dvp_status accel_stream_create(dvp_device *device, dvp_stream **stream, dvp_error *error);
void accel_stream_destroy(dvp_device *device, dvp_stream *stream);
dvp_status accel_stream_sync(dvp_device *device, dvp_stream *stream, dvp_error *error);
dvp_status accel_event_create(dvp_device *device, dvp_event **event, dvp_error *error);
void accel_event_destroy(dvp_device *device, dvp_event *event);
dvp_status accel_event_record(dvp_device *device, dvp_event *event, dvp_stream *stream,
                              dvp_error *error);
dvp_status accel_event_wait(dvp_device *device, dvp_stream *stream, dvp_event *event,
                            dvp_error *error);

/* The memory of a range of a device buffer, NULL with the error set when it is not in one. */
unsigned char *accel_memory(dvp_device *device, const void *memory, uint64_t offset,
                            uint64_t bytes, dvp_error *error);

/* An attribute by name, NULL when the operation has none of that name. */
const dvp_attribute *accel_attribute(const dvp_op *op, const char *name);

/* The kernels, ended by one without a name. */
extern const dvp_kernel ACCEL_KERNELS[];

/* Whether an operation can run: fills in the answer. */
void accel_answer(const dvp_op *op, dvp_answer *answer);

#endif
