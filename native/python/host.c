/* Host operations of an artifact: through libtorch's C functions where they can go that way,
 * else through Python, which also tells what is wrong with a call that fails. */
#include "host.h"

#include <stdlib.h>

static void keep_nothing(dvt_managed *self)
{
    free(self);
}

/* A framework tensor that looks at the program's memory for the length of one operation. */
static PyObject *lend(const host_binding *self, const dvt_tensor *t)
{
    dvt_managed *m = calloc(1, sizeof *m + 2 * (size_t)t->ndim * sizeof(int64_t));
    if (m == NULL)
        return PyErr_NoMemory();
    m->version.major = 1;
    m->deleter = keep_nothing;
    m->tensor = *t;
    m->tensor.shape = (int64_t *)(void *)(m + 1);
    m->tensor.strides = m->tensor.shape + t->ndim;
    if (t->ndim > 0) {
        memcpy(m->tensor.shape, t->shape, (size_t)t->ndim * sizeof(int64_t));
        memcpy(m->tensor.strides, t->strides, (size_t)t->ndim * sizeof(int64_t));
    }
    void *made = NULL;
    if (self->api->object_from_managed(m, &made) != 0) {
        free(m);
        return NULL;
    }
    return made;
}

PyObject *number_tuple(const int64_t *values, int32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(tuple, i, value) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static bool lies_as(const dvt_tensor *got, const dvt_tensor *expected)
{
    if (got->ndim != expected->ndim)
        return false;
    for (int32_t i = 0; i < got->ndim; i++)
        if (got->shape[i] != expected->shape[i] ||
            (got->shape[i] != 1 && got->strides[i] != expected->strides[i]))
            return false;
    return true;
}

/* Takes ownership of a result, laid out as expected. */
static int accept_result(const host_binding *self, PyObject *result, const dvt_tensor *expected,
                         dvt_managed **out)
{
    if (self->api->managed_from_object(result, out) != 0)
        return -1;
    if (lies_as(&(*out)->tensor, expected))
        return 0;
    (*out)->deleter(*out);
    *out = NULL;
    PyObject *shape = number_tuple(expected->shape, expected->ndim);
    PyObject *strides = number_tuple(expected->strides, expected->ndim);
    PyObject *fitted =
        shape && strides ? PyObject_CallFunctionObjArgs(self->fit, result, shape, strides, NULL)
                         : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    int failed = fitted == NULL || self->api->managed_from_object(fitted, out) != 0;
    Py_XDECREF(fitted);
    return failed ? -1 : 0;
}

/* Takes everything out of a list; an exception that is set stays. */
static void empty(PyObject *list)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyList_SetSlice(list, 0, PyList_Size(list), NULL) != 0)
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static PyObject *call_python(const host_binding *self, const dvt_host_operation *o)
{
    PyObject *tensors = PyList_New(0), *numbers = NULL, *results = NULL;
    for (size_t i = 0; tensors != NULL && i < o->input_count; i++) {
        PyObject *tensor = lend(self, o->inputs[i]);
        if (tensor == NULL || PyList_Append(tensors, tensor) != 0)
            Py_CLEAR(tensors);
        Py_XDECREF(tensor);
    }
    numbers =
        number_tuple((const int64_t *)(const void *)o->attributes, (int32_t)o->attribute_count);
    PyObject *number = PyLong_FromUnsignedLong(o->call);
    if (tensors != NULL && numbers != NULL && number != NULL)
        results = PyObject_CallFunctionObjArgs(self->call, number, tensors, numbers, NULL);
    if (tensors != NULL) /* what was lent is taken back, whoever keeps the list */
        empty(tensors);
    Py_XDECREF(tensors);
    Py_XDECREF(numbers);
    Py_XDECREF(number);
    return results;
}

static dvt_status through_python(const host_binding *self, const dvt_host_operation *o,
                                 dvt_error *error)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_Clear(); /* a call through C that reached Python and raised there: it is made again */
    PyObject *results = call_python(self, o);
    int failed = results == NULL;
    for (size_t i = 0; !failed && i < o->output_count; i++) {
        PyObject *result = PySequence_GetItem(results, (Py_ssize_t)i);
        failed = result == NULL;
        if (!failed && o->outputs[i] != NULL && result == Py_None)
            failed = raise_named("RunFailed", "PyTorch gave no result %zu", i) == NULL;
        else if (!failed && o->outputs[i] != NULL)
            failed = accept_result(self, result, o->outputs[i], &o->made[i]) != 0;
        Py_XDECREF(result);
    }
    for (size_t i = 0; failed && i < o->output_count; i++)
        if (o->made[i] != NULL) {
            o->made[i]->deleter(o->made[i]);
            o->made[i] = NULL;
        }
    Py_XDECREF(results);
    PyGILState_Release(state);
    if (!failed)
        return DVT_OK;
    error->status = DVT_ERROR_HOST;
    strcpy(error->message, "a host operation failed");
    return DVT_ERROR_HOST;
}

dvt_status host_call(void *context, const dvt_host_operation *operation, dvt_error *error)
{
    host_binding *self = context;
    const aten_plan *plan =
        operation->call < self->plan_count ? self->plans[operation->call] : NULL;
    if (plan != NULL && aten_run(plan, operation)) {
        atomic_fetch_add_explicit(&self->native, 1, memory_order_relaxed);
        return DVT_OK;
    }
    atomic_fetch_add_explicit(&self->python, 1, memory_order_relaxed);
    return through_python(self, operation, error);
}

/* ---- binding ---- */

int host_bind(host_binding *self, PyObject *host)
{
    if (host == NULL || host == Py_None)
        return 0;
    PyObject *type = PyObject_GetAttrString(host, "tensor_type");
    if (type == NULL)
        return -1;
    self->api = exchange_of((PyTypeObject *)type);
    Py_DECREF(type);
    self->call = PyObject_GetAttrString(host, "call");
    self->fit = PyObject_GetAttrString(host, "fit");
    self->is_autocast = PyObject_GetAttrString(host, "is_autocast_enabled");
    self->plain = PyObject_GetAttrString(host, "without_autocast");
    self->device = PyUnicode_InternFromString("cpu");
    PyObject *follows = PyObject_GetAttrString(host, "follows_torch");
    if (!self->call || !self->fit || !self->is_autocast || !self->plain || !self->device ||
        !follows)
        return -1;
    self->follows_torch = PyObject_IsTrue(follows) == 1 && aten_available();
    Py_DECREF(follows);
    if (self->api == NULL) {
        raise_named("UnsupportedArtifact",
                    "this PyTorch has no DLPack exchange interface: host operations need it");
        return -1;
    }
    return 0;
}

static void free_plans(host_binding *self)
{
    for (size_t i = 0; i < self->plan_count; i++)
        aten_plan_free(self->plans[i]);
    free(self->plans);
    self->plans = NULL;
    self->plan_count = 0;
}

void host_unbind(host_binding *self)
{
    free_plans(self);
    Py_CLEAR(self->call);
    Py_CLEAR(self->fit);
    Py_CLEAR(self->is_autocast);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->device);
}

PyObject *host_plan(host_binding *self, PyObject *descriptions, size_t calls)
{
    if (PyList_Size(descriptions) != (Py_ssize_t)calls) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a description or None for each host call");
        return NULL;
    }
    free_plans(self);
    if (calls == 0 || !aten_available())
        Py_RETURN_NONE;
    self->plans = calloc(calls, sizeof(aten_plan *));
    if (self->plans == NULL)
        return PyErr_NoMemory();
    self->plan_count = calls;
    for (size_t i = 0; i < calls; i++) {
        PyObject *description = PyList_GetItem(descriptions, (Py_ssize_t)i);
        if (description == Py_None)
            continue;
        self->plans[i] = aten_plan_new(description);
        if (self->plans[i] == NULL && PyErr_Occurred())
            return NULL;
    }
    Py_RETURN_NONE;
}

int host_without_autocast(const host_binding *self, PyObject *artifact, PyObject *const *args,
                          Py_ssize_t given, PyObject **made)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(self->is_autocast, self->device, NULL);
    int on = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (on <= 0)
        return on;
    PyObject *tuple = PyTuple_New(given);
    for (Py_ssize_t i = 0; tuple != NULL && i < given; i++)
        PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    if (tuple != NULL)
        *made = PyObject_CallFunctionObjArgs(self->plain, artifact, tuple, NULL);
    Py_XDECREF(tuple);
    return on;
}
