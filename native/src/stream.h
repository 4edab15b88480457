/* stream.h: memory, streams and events that callers have of a device. Not installed. */
#ifndef DVT_STREAM_H
#define DVT_STREAM_H

#include "device.h"

struct dvt_buffer {
    plugin *plugin;
    plugin_buffer memory;
    uint32_t kind; /* 0: borrowed */
    void *host;    /* where the host uses it, or NULL */
};

struct dvt_stream {
    plugin *plugin;
    plugin_lane *lane;
};

struct dvt_event {
    plugin *plugin;
    plugin_event event; /* made when it is first recorded */
    plugin_lane *lane;  /* NULL: it has happened */
    uint64_t turn, generation;
};

/* Wait for what a lane, or every lane, was given; an error of that is not told. */
void dvt_wait_for_lane(plugin_lane *lane);
void dvt_wait_for_lanes(plugin *p);

/* 0, or -1 with the error set. */
int dvt_buffer_is_lost(const dvt_buffer *buffer, plugin_error *error);
/* Records an event behind all that a lane's kernels were given, in a run. */
/* A result that is made on a device: its deleter frees the buffer. */
dvt_status dvt_new_device_output(plugin *p, const dvt_tensor *like, uint64_t bytes,
                                 dvt_managed **made, dvt_error *error);
int dvt_event_set(dvt_event *event, plugin_lane *lane, plugin_error *error);
void dvt_event_unset(dvt_event *event);

#endif
