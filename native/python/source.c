/* dovetail._native.Source: the bytes of an artifact, read and verified once, from which any
 * number of artifacts are opened. */
#include "bindings.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD dvt_source *source;
} Source;

PyTypeObject *source_type;

static dvt_status from_bytes(PyObject *bytes, dvt_source **source, dvt_error *error)
{
    size_t size = (size_t)PyBytes_Size(bytes);
    void *copy = aligned_alloc(64, (size + 64) / 64 * 64);
    if (copy == NULL) {
        error->status = DVT_ERROR_MEMORY;
        strcpy(error->message, "out of memory");
        return DVT_ERROR_MEMORY;
    }
    if (size > 0)
        memcpy(copy, PyBytes_AsString(bytes), size);
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_source_memory(copy, size, free, source, error);
    Py_END_ALLOW_THREADS;
    if (status != DVT_OK)
        free(copy);
    return status;
}

static dvt_status from_path(PyObject *path, dvt_source **source, dvt_error *error)
{
    PyObject *encoded = NULL;
    if (!PyUnicode_FSConverter(path, &encoded))
        return DVT_ERROR_ARGUMENT;
    dvt_status status;
    const char *text = PyBytes_AsString(encoded);
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_source_open(text, source, error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(encoded);
    return status;
}

dvt_source *source_of(PyObject *object)
{
    return PyObject_TypeCheck(object, source_type) ? ((Source *)object)->source : NULL;
}

static PyObject *source_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", NULL};
    PyObject *given;
    dvt_error error = {0, ""};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &given))
        return NULL;
    Source *self = (Source *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    dvt_status status = PyBytes_Check(given) ? from_bytes(given, &self->source, &error)
                                             : from_path(given, &self->source, &error);
    if (status == DVT_OK)
        return (PyObject *)self;
    raise_error(&error);
    Py_DECREF(self);
    return NULL;
}

static void source_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    dvt_source_close(((Source *)object)->source);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyType_Slot source_slots[] = {
    {Py_tp_new, (void *)source_new},
    {Py_tp_dealloc, (void *)source_dealloc},
    {Py_tp_doc, "Source(path or bytes): the bytes of an artifact, read and verified once"},
    {0, NULL},
};

PyType_Spec source_spec = {
    .name = "dovetail._native.Source",
    .basicsize = sizeof(Source),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = source_slots,
};
