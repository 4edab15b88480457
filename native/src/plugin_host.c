/* What the host offers to plug-ins: a log, memory, spans in profiles, cancellation, progress.
 */
#include "plugin_host.h"

#include "control.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const plugin_listener *) listening;

void plugin_listen(const plugin_listener *listener)
{
    atomic_store(&listening, listener);
}

static void host_log(void *context, int32_t level, const char *message)
{
    (void)context;
    const plugin_listener *heard = atomic_load(&listening);
    if (message == NULL)
        return;
    if (heard != NULL && heard->log != NULL)
        heard->log(level, message);
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
