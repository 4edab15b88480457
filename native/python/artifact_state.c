/* The state of an artifact: copied, looked at, changed. The interpreter lock is given up in
 * each, as a run of the same state may hold that one's lock and ask for this. */
#include "artifact.h"

#include "call.h"

PyObject *artifact_clone(PyObject *object, PyObject *unused)
{
    (void)unused;
    Artifact *self = (Artifact *)object;
    PyTypeObject *type = Py_TYPE(object);
    Artifact *made = (Artifact *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (made == NULL)
        return NULL;
    made->artifact = self->artifact;
    made->plain = self->plain;
    made->whole =
        (Artifact *)Py_NewRef(self->whole != NULL ? (PyObject *)self->whole : (PyObject *)self);
    if (dvt_state_count(self->artifact) == 0)
        return (PyObject *)made;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    dvt_state *like = self->state != NULL ? self->state : dvt_own_state(self->artifact);
    status = dvt_state_new(self->artifact, like, &made->state, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK)
        return (PyObject *)made;
    Py_DECREF((PyObject *)made);
    return raise_error(&error);
}

PyObject *artifact_states(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_state_info info = {.struct_size = sizeof info};
    for (size_t i = 0; list != NULL && dvt_state_at(artifact, i, &info) == DVT_OK; i++) {
        PyObject *shape =
            info.shape != NULL ? number_tuple(info.shape, info.ndim) : Py_NewRef(Py_None);
        PyObject *row = shape ? Py_BuildValue("(NiiN)", text_of(info.name, strlen(info.name)),
                                              info.dtype.code, info.dtype.bits, shape)
                              : NULL;
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* The state that this object runs with; NULL with an exception set. */
static dvt_state *state_of(Artifact *self)
{
    if (self->state != NULL)
        return self->state;
    dvt_state *own;
    Py_BEGIN_ALLOW_THREADS;
    own = dvt_own_state(self->artifact);
    Py_END_ALLOW_THREADS;
    if (own == NULL)
        raise_named("RunFailed", "the state cannot be used: the artifact's constants are "
                                 "damaged, or it was opened to be looked at only");
    return own;
}

/* A new row-major tensor for a buffer of state; NULL with an exception set. */
static dvt_managed *new_tensor(const dvt_artifact *artifact, size_t number)
{
    static const dvt_allocator plain;
    dvt_state_info info = {.struct_size = sizeof info};
    int64_t strides[DVT_MAX_RANK], count = 1;
    if (dvt_state_at(artifact, number, &info) != DVT_OK || info.shape == NULL) {
        raise_named("RunFailed", "there is no buffer %zu of state, or its shape varies",
                    number);
        return NULL;
    }
    for (int32_t i = info.ndim - 1; i >= 0; i--) {
        strides[i] = count;
        if (__builtin_mul_overflow(count, info.shape[i], &count))
            count = INT64_MAX / 16;
    }
    dvt_tensor like = {.device = {DVT_CPU, 0},
                       .ndim = info.ndim,
                       .dtype = info.dtype,
                       .shape = (int64_t *)(uintptr_t)info.shape,
                       .strides = strides};
    dvt_managed *made =
        dvt_new_output(&plain, &like, (uint64_t)count * (((unsigned)info.dtype.bits + 7) / 8));
    if (made == NULL)
        PyErr_NoMemory();
    return made;
}

/* A copy of a buffer of state; NULL with an exception set. */
static dvt_managed *read_buffer(Artifact *self, PyObject *index)
{
    size_t number = PyLong_AsSize_t(index);
    if (number == (size_t)-1 && PyErr_Occurred())
        return NULL;
    dvt_state *state = state_of(self);
    dvt_managed *made = state != NULL ? new_tensor(self->artifact, number) : NULL;
    if (made == NULL)
        return NULL;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_state_read(state, number, &made->tensor, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK)
        return made;
    made->deleter(made);
    raise_error(&error);
    return NULL;
}

PyObject *artifact_read_state(PyObject *object, PyObject *index)
{
    dvt_managed *made = read_buffer((Artifact *)object, index);
    return made != NULL ? wrap_managed(made) : NULL;
}

static Py_ssize_t bytes_of(const dvt_tensor *t)
{
    return (Py_ssize_t)dvt_numel(t) * ((t->dtype.bits + 7) / 8);
}

PyObject *artifact_state_bytes(PyObject *object, PyObject *index)
{
    dvt_managed *made = read_buffer((Artifact *)object, index);
    if (made == NULL)
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(made->tensor.data, bytes_of(&made->tensor));
    made->deleter(made);
    return bytes;
}

static PyObject *write_tensor(dvt_state *state, size_t number, const dvt_tensor *tensor)
{
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_state_write(state, number, tensor, &error);
    Py_END_ALLOW_THREADS;
    if (status != DVT_OK)
        return raise_error(&error);
    Py_RETURN_NONE;
}

/* Bytes as state_bytes() gives them. */
static PyObject *write_bytes(const Artifact *self, dvt_state *state, size_t number,
                             PyObject *bytes)
{
    dvt_managed *made = new_tensor(self->artifact, number);
    if (made == NULL)
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t size = PyBytes_Size(bytes);
    if (size != bytes_of(&made->tensor))
        raise_named("RunFailed", "%zd bytes for a buffer of %zd", size,
                    bytes_of(&made->tensor));
    else {
        memcpy(made->tensor.data, PyBytes_AsString(bytes), (size_t)size);
        result = write_tensor(state, number, &made->tensor);
    }
    made->deleter(made);
    return result;
}

PyObject *artifact_write_state(PyObject *object, PyObject *args)
{
    Py_ssize_t number;
    PyObject *tensor;
    if (!PyArg_ParseTuple(args, "nO", &number, &tensor))
        return NULL;
    dvt_state *state = state_of((Artifact *)object);
    if (state == NULL)
        return NULL;
    if (PyBytes_Check(tensor))
        return write_bytes((Artifact *)object, state, (size_t)number, tensor);
    argument given = {0};
    if (read_argument(tensor, &given, false) != 0) {
        release_argument(&given);
        return PyErr_Occurred() ? NULL : raise_named("RunFailed", "give a tensor");
    }
    PyObject *result = write_tensor(state, (size_t)number, &given.tensor);
    release_argument(&given);
    return result;
}

PyObject *artifact_reset_state(PyObject *object, PyObject *unused)
{
    (void)unused;
    dvt_state *state = state_of((Artifact *)object);
    if (state == NULL)
        return NULL;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_state_reset(state, &error);
    Py_END_ALLOW_THREADS;
    if (status != DVT_OK)
        return raise_error(&error);
    Py_RETURN_NONE;
}
