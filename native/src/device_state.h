/* device_state.h: state that stays on a device. Not installed. */
#ifndef DVT_DEVICE_STATE_H
#define DVT_DEVICE_STATE_H

#include "device.h"

/* A buffer of state that one device alone touches. */
typedef struct resident {
    uint32_t state, device; /* device: counted from 1 */
    uint32_t reader;        /* the temporary that is this memory; DVT_NONE: it gets a copy */
    uint32_t writer; /* the one whose memory becomes the state's; DVT_NONE: it is copied */
} resident;

/* The same of one state. Its contents are those of the host's copy unless `is_newer`. */
typedef struct state_memory {
    plugin_buffer now, next; /* `next`: where the new value is computed */
    bool is_sent;            /* `now` has what the host's copy has, or newer */
    bool is_newer;           /* than the host's copy */
    bool is_arriving;        /* sent in this turn, and not waited for */
    bool is_replaced;        /* in this run, by `next` */
} state_memory;

/* Finds the state that stays on devices; once, when an artifact is opened. */
dvt_status dvt_residents_plan(dvt_artifact *a, dvt_error *error);

/* The lock of the state is held, but where it is new or freed. */
dvt_status dvt_device_state_new(dvt_state *state, dvt_error *error);
void dvt_device_state_free(dvt_state *state);
/* Brings the host's copy up to date. */
dvt_status dvt_device_state_fetch(dvt_state *state, uint32_t buffer, dvt_error *error);
/* The host's copy was written to. */
void dvt_device_state_written(dvt_state *state, uint32_t buffer);

/* In a run: sends what the device lacks and points a frame's buffers at a state's memory. */
int dvt_device_state_bind(frame *f, dvt_state *state, uint32_t device, plugin_lane *lane,
                          bool *sent, plugin_error *error);
/* A copy to or from state that stays; `handled` is false where it is none. */
int dvt_device_state_copy(frame *f, const instruction *in, dvt_state *state, plugin_lane *lane,
                          bool *handled, plugin_error *error);
void dvt_device_state_arrived(const dvt_artifact *a, dvt_state *state, uint32_t device,
                              bool arrived);
/* A run has ended: what replaces state takes its place. It is still computed on a lane, or on
 * none (NULL). */
void dvt_device_state_commit(const dvt_artifact *a, dvt_state *state, const plugin_lane *lane,
                             bool succeeded);

#endif
