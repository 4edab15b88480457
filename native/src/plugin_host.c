/* What the host offers to plug-ins: a log, memory, spans in profiles, cancellation, progress.
 */
#include "plugin_host.h"

#include "control.h"
#include "log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const plugin_listener *) listening;

void plugin_listen(const plugin_listener *listener)
{
    atomic_store(&listening, listener);
}

/* ---- a listener in C, of a program that has no Python ---- */

static dvt_listener known; /* set before plug-ins run, as the interface says */

static uint64_t tell_begin(const char *name)
{
    return known.span_begin != NULL ? known.span_begin(known.context, name) : 0;
}

static void tell_end(uint64_t number)
{
    if (known.span_end != NULL && number != 0)
        known.span_end(known.context, number);
}

static void tell_progress(const char *what, double done)
{
    if (known.progress != NULL)
        known.progress(known.context, what, done);
}

dvt_status dvt_set_listener(const dvt_listener *listener, dvt_error *error)
{
    static const plugin_listener told = {NULL, tell_begin, tell_end, tell_progress};
    if (listener != NULL && listener->struct_size < sizeof listener->struct_size)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "dvt_listener: set struct_size");
    plugin_listen(NULL);
    known = (dvt_listener){.struct_size = sizeof known};
    if (listener == NULL)
        return DVT_OK;
    memcpy(&known, listener, /* of an older caller it is shorter: the rest is zero */
           listener->struct_size < sizeof known ? listener->struct_size : sizeof known);
    plugin_listen(&told);
    return DVT_OK;
}

/* ---- what plug-ins call ---- */

static void host_log(void *context, int32_t level, const char *message)
{
    (void)context;
    const plugin_listener *heard = atomic_load(&listening);
    if (message == NULL)
        return;
    if (heard != NULL && heard->log != NULL)
        heard->log(level, message);
    else if (dvt_logs(level))
        dvt_log(level, "%s", message);
    else if (level >= 40)
        fprintf(stderr, "dovetail plug-in: %s\n", message);
}

static void *host_alloc(void *context, uint64_t bytes, uint64_t alignment)
{
    (void)context;
    uint64_t unit = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    if ((unit & (unit - 1)) != 0 || unit > 1u << 30 || bytes > (uint64_t)1 << 46)
        return NULL;
    uint64_t size = (bytes + unit - 1) / unit * unit;
    void *memory = aligned_alloc((size_t)unit, (size_t)(size == 0 ? unit : size));
    if (memory != NULL)
        memset(memory, 0, (size_t)(size == 0 ? unit : size));
    return memory;
}

static void host_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

static uint64_t span_begin(void *context, const char *name)
{
    (void)context;
    const plugin_listener *heard = atomic_load(&listening);
    return heard != NULL && heard->span_begin != NULL && name != NULL ? heard->span_begin(name)
                                                                      : 0;
}

static void span_end(void *context, uint64_t number)
{
    (void)context;
    const plugin_listener *heard = atomic_load(&listening);
    if (heard != NULL && heard->span_end != NULL)
        heard->span_end(number);
}

static int32_t cancelled(void *context)
{
    (void)context;
    return dvt_control_poll(dvt_control());
}

static void progress(void *context, const char *what, double done)
{
    (void)context;
    const plugin_listener *heard = atomic_load(&listening);
    if (heard != NULL && heard->progress != NULL && what != NULL)
        heard->progress(what, done);
}

const dvp_host PLUGIN_HOST = {
    .struct_size = sizeof(dvp_host),
    .abi = DVP_ABI,
    .log = host_log,
    .alloc = host_alloc,
    .free = host_free,
    .span_begin = span_begin,
    .span_end = span_end,
    .cancelled = cancelled,
    .progress = progress,
};
