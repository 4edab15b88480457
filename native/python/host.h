/* host.h: what calls PyTorch for an artifact. */
#ifndef DVT_HOST_H
#define DVT_HOST_H

#include "aten.h"

#include <stdatomic.h>

/* A dovetail.runtime.host.Host, as C needs it. All NULL where there is none. */
typedef struct {
    PyObject *call;        /* call(number, tensors, sizes) -> tensors */
    PyObject *fit;         /* fit(tensor, shape, strides), where a result lies otherwise */
    PyObject *is_autocast; /* is_autocast(device) */
    PyObject *plain;       /* plain(artifact, args): a call with autocast off */
    PyObject *device;      /* "cpu" */
    bool follows_torch;    /* use as many threads as PyTorch does at the time of a call */
    const exchange_api *api;
    aten_plan **plans; /* one a host call; NULL: through Python */
    size_t plan_count;
    atomic_ullong native, python; /* how many went which way */
} host_binding;

/* 0, or -1 with an exception set. None binds nothing. */
int host_bind(host_binding *self, PyObject *host);
void host_unbind(host_binding *self);

/* Says how each host call goes: a list of descriptions (see aten_plan_new) or None. */
PyObject *host_plan(host_binding *self, PyObject *descriptions, size_t calls);

/* Where autocast is on in this thread, makes the whole call with it off: 1 and its result (NULL
 * with an exception set). 0: it is off. -1: an exception. */
int host_without_autocast(const host_binding *self, PyObject *artifact, PyObject *const *args,
                          Py_ssize_t given, PyObject **made);

/* The runtime's host function; its context is a host_binding. */
dvt_status host_call(void *context, const dvt_host_operation *operation, dvt_error *error);

PyObject *number_tuple(const int64_t *values, int32_t count);

#endif
