/* no_streams.h: streams and events of a device that does everything when it is asked for. */
#ifndef NO_STREAMS_H
#define NO_STREAMS_H

#include "dovetail_plugin.h"

static dvp_status stream_create(dvp_device *device, dvp_stream **stream, dvp_error *error)
{
    (void)device;
    (void)error;
    *stream = NULL;
    return DVP_OK;
}

static void stream_destroy(dvp_device *device, dvp_stream *stream)
{
    (void)device;
    (void)stream;
}

static dvp_status stream_sync(dvp_device *device, dvp_stream *stream, dvp_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    return DVP_OK;
}

static dvp_status event_create(dvp_device *device, dvp_event **event, dvp_error *error)
{
    (void)device;
    (void)error;
    *event = NULL;
    return DVP_OK;
}

static void event_destroy(dvp_device *device, dvp_event *event)
{
    (void)device;
    (void)event;
}

static dvp_status event_record(dvp_device *device, dvp_event *event, dvp_stream *stream,
                               dvp_error *error)
{
    (void)device;
    (void)event;
    (void)stream;
    (void)error;
    return DVP_OK;
}

static dvp_status event_wait(dvp_device *device, dvp_stream *stream, dvp_event *event,
                             dvp_error *error)
{
    return event_record(device, event, stream, error);
}

#endif
