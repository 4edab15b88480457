/* Device memory by way of DLPack: capsules that share it, and capsules of others taken. */
#include "stream.h"

/* As DLPack had it before version 1. */
typedef struct {
    dvt_tensor tensor;
    void *manager_ctx;
    void (*deleter)(void *self);
} old_managed;

typedef struct {
    union {
        dvt_managed versioned;
        old_managed old;
    } managed;
    PyObject *owner;
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
} shared;

static void drop_shared(void *self)
{
    shared *s = self;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(s->owner);
    PyMem_Free(s);
    PyGILState_Release(state);
}

static void drop_versioned(dvt_managed *self)
{
    drop_shared(self);
}

static void drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name != NULL && strncmp(name, "used", 4) != 0)
        drop_shared(PyCapsule_GetPointer(capsule, name));
}

static int fill(shared *s, Memory *self, PyObject *args, dvt_tensor *t, int *versioned)
{
    PyObject *shape, *strides;
    int code, bits;
    long long offset;
    if (!PyArg_ParseTuple(args, "iiO!O!Lp", &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type,
                          &strides, &offset, versioned))
        return -1;
    Py_ssize_t rank = PyTuple_Size(shape);
    void *handle = dvt_buffer_handle(self->buffer);
    if (handle == NULL) {
        raise_named("DeviceLost", "the memory is lost: its device was");
        return -1;
    }
    if (rank > MOST_DIMENSIONS || read_dimensions(shape, s->shape, rank) != 0 ||
        read_dimensions(strides, s->strides, rank) != 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "too many dimensions");
        return -1;
    }
    *t = (dvt_tensor){.data = handle,
                      .device = {DVT_EXTENSION, ((Plugin *)self->owner)->plugin->index},
                      .ndim = (int32_t)rank,
                      .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                      .shape = s->shape,
                      .strides = s->strides,
                      .byte_offset = (uint64_t)offset};
    return 0;
}

PyObject *memory_dlpack(PyObject *object, PyObject *args)
{
    int versioned = 0;
    dvt_tensor tensor;
    shared *s = PyMem_Calloc(1, sizeof *s);
    if (s == NULL)
        return PyErr_NoMemory();
    if (fill(s, (Memory *)object, args, &tensor, &versioned) != 0) {
        PyMem_Free(s);
        return NULL;
    }
    s->owner = Py_NewRef(object);
    if (versioned) {
        s->managed.versioned.version.major = 1;
        s->managed.versioned.tensor = tensor;
        s->managed.versioned.deleter = drop_versioned;
    } else {
        s->managed.old.tensor = tensor;
        s->managed.old.deleter = drop_shared;
    }
    PyObject *capsule =
        PyCapsule_New(s, versioned ? "dltensor_versioned" : "dltensor", drop_capsule);
    if (capsule == NULL)
        drop_shared(s);
    return capsule;
}

/* ---- capsules of others ---- */

static const char TAKEN[] = "dovetail.taken", TAKEN_OLD[] = "dovetail.taken_old";

static void drop_taken(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, TAKEN_OLD)) {
        old_managed *m = PyCapsule_GetPointer(capsule, TAKEN_OLD);
        if (m->deleter != NULL)
            m->deleter(m);
        return;
    }
    dvt_managed *m = PyCapsule_GetPointer(capsule, TAKEN);
    if (m->deleter != NULL)
        m->deleter(m);
}

/* The Memory that a tensor of ours shares, or NULL. */
static PyObject *own_memory(const void *managed, bool versioned)
{
    const shared *s = managed;
    bool ours = versioned ? s->managed.versioned.deleter == drop_versioned
                          : s->managed.old.deleter == drop_shared;
    return ours ? Py_NewRef(s->owner) : NULL;
}

static PyObject *describe(const dvt_tensor *t, PyObject *owner)
{
    PyObject *shape = PyTuple_New(t->ndim), *strides = PyTuple_New(t->ndim);
    int64_t row = 1;
    for (int32_t i = t->ndim - 1; shape != NULL && strides != NULL && i >= 0; i--) {
        PyTuple_SetItem(shape, i, PyLong_FromLongLong(t->shape[i]));
        PyTuple_SetItem(strides, i,
                        PyLong_FromLongLong(t->strides != NULL ? t->strides[i] : row));
        row = (int64_t)((uint64_t)row * (uint64_t)t->shape[i]);
    }
    return Py_BuildValue("(iiNiiiNNKN)", t->device.type, t->device.id,
                         PyLong_FromVoidPtr(t->data), t->dtype.code, t->dtype.bits,
                         t->dtype.lanes, shape, strides, (unsigned long long)t->byte_offset,
                         owner);
}

/* read_dlpack(capsule) -> (device type, number, address, code, bits, lanes, shape, strides,
 * offset, owner): the tensor is taken over, and lives as long as `owner`. */
PyObject *read_dlpack(PyObject *module, PyObject *capsule)
{
    (void)module;
    bool versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
    if (!versioned && !PyCapsule_IsValid(capsule, "dltensor"))
        return raise_named("GuardFailed", "__dlpack__ gives no capsule of DLPack's");
    void *managed =
        PyCapsule_GetPointer(capsule, versioned ? "dltensor_versioned" : "dltensor");
    if (versioned && ((dvt_managed *)managed)->version.major != 1)
        return raise_named("GuardFailed", "a tensor of DLPack %u, where 1 is known",
                           ((dvt_managed *)managed)->version.major);
    const dvt_tensor *t =
        versioned ? &((dvt_managed *)managed)->tensor : &((old_managed *)managed)->tensor;
    if (t->ndim < 0 || t->ndim > MOST_DIMENSIONS)
        return raise_named("GuardFailed", "a tensor of %d dimensions", t->ndim);
    PyObject *taken = PyCapsule_New(managed, versioned ? TAKEN : TAKEN_OLD, drop_taken);
    if (taken == NULL)
        return NULL;
    PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor");
    PyCapsule_SetDestructor(capsule, NULL);
    PyObject *own = own_memory(managed, versioned);
    PyObject *made = describe(t, own != NULL ? own : Py_NewRef(taken));
    Py_DECREF(taken); /* with a tensor of ours: its memory has the reference */
    return made;
}
