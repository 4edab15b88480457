/* dovetail._native.Memory, Stream and Event: what callers have of a device, and runs on it.
 *
 * Each keeps the plug-in alive, a stream also what the device still uses of its runs. The
 * interpreter lock is released wherever the device, or a lock of the plug-in's, may be waited
 * for. */
#include "stream.h"

#include "artifact.h"

#include <stdlib.h>

PyTypeObject *memory_type, *stream_type, *event_type;

typedef struct {
    PyObject_HEAD dvt_stream *stream;
    PyObject *owner;
    PyObject *held; /* a list of pairs: an event, and what is needed until it has happened */
} Stream;

typedef struct {
    PyObject_HEAD dvt_event *event;
    PyObject *owner;
} Event;

static PyObject *new_object(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* The struct of an argument that may be None; -1 with an exception set where it is neither. */
static int read_optional(PyObject *given, PyTypeObject *type, PyObject **found)
{
    *found = given == Py_None ? NULL : given;
    if (given == Py_None || Py_TYPE(given) == type)
        return 0;
    PyErr_Format(PyExc_TypeError, "a %R is wanted, or None", (PyObject *)type);
    return -1;
}

/* ---- Memory ---- */

static Memory *new_memory(PyObject *owner, PyObject *keep)
{
    Memory *self = (Memory *)new_object(memory_type);
    if (self != NULL) {
        self->owner = Py_NewRef(owner);
        self->keep = keep != NULL ? Py_NewRef(keep) : NULL;
    }
    return self;
}

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plugin", "size", "kind", "address", "keep", NULL};
    PyObject *owner, *keep = NULL, *address = NULL;
    long long bytes; /* the formats of unsigned numbers wrap */
    unsigned int kind = DVT_MEMORY_DEVICE;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!L|IO!O", names, plugin_type, &owner,
                                     &bytes, &kind, &PyLong_Type, &address, &keep))
        return NULL;
    void *place = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
    if (PyErr_Occurred())
        return NULL;
    if (bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of bytes");
        return NULL;
    }
    Memory *self = new_memory(owner, keep);
    if (self == NULL)
        return NULL;
    plugin *p = ((Plugin *)owner)->plugin;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    if (kind == 0)
        status = dvt_buffer_borrow(p, place, (uint64_t)bytes, &self->buffer, &error);
    else if (kind == DVT_MEMORY_IMPORTED)
        status = dvt_buffer_import(p, place, (uint64_t)bytes, &self->buffer, &error);
    else
        status = dvt_buffer_new(p, kind, (uint64_t)bytes, &self->buffer, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return raise_error(&error);
}

static void memory_dealloc(PyObject *object)
{
    Memory *self = (Memory *)object;
    Py_BEGIN_ALLOW_THREADS;
    dvt_buffer_free(self->buffer);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(self->keep);
    Py_XDECREF(self->owner);
    free_object(object);
}

static PyObject *memory_move(PyObject *object, PyObject *args, bool writes)
{
    Memory *self = (Memory *)object;
    PyObject *given, *stream, *address;
    long long offset, bytes;
    if (!PyArg_ParseTuple(args, "OLO!L", &given, &offset, &PyLong_Type, &address, &bytes) ||
        read_optional(given, stream_type, &stream) != 0)
        return NULL;
    void *host = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    if (offset < 0 || bytes < 0)
        return raise_named("RunFailed", "a negative place or number of bytes");
    dvt_stream *on = stream != NULL ? ((Stream *)stream)->stream : NULL;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = writes ? dvt_buffer_write(self->buffer, on, (uint64_t)offset, host,
                                       (uint64_t)bytes, &error)
                    : dvt_buffer_read(self->buffer, on, (uint64_t)offset, host, (uint64_t)bytes,
                                      &error);
    Py_END_ALLOW_THREADS;
    return status == DVT_OK ? Py_NewRef(Py_None) : raise_error(&error);
}

static PyObject *memory_write(PyObject *object, PyObject *args)
{
    return memory_move(object, args, true);
}

static PyObject *memory_read(PyObject *object, PyObject *args)
{
    return memory_move(object, args, false);
}

static PyObject *memory_bytes(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dvt_buffer_bytes(((Memory *)object)->buffer));
}

static PyObject *memory_handle(PyObject *object, PyObject *unused)
{
    (void)unused;
    void *handle = dvt_buffer_handle(((Memory *)object)->buffer);
    return handle != NULL ? PyLong_FromVoidPtr(handle) : Py_NewRef(Py_None);
}

static PyObject *memory_host(PyObject *object, PyObject *unused)
{
    (void)unused;
    void *host = dvt_buffer_host(((Memory *)object)->buffer);
    return host != NULL ? PyLong_FromVoidPtr(host) : Py_NewRef(Py_None);
}

static PyObject *memory_plugin(PyObject *object, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(((Memory *)object)->owner);
}

static PyMethodDef memory_methods[] = {
    {"plugin", memory_plugin, METH_NOARGS, "plugin() -> whose device it is on"},
    {"write", memory_write, METH_VARARGS,
     "write(stream, offset, address, bytes): from the host"},
    {"read", memory_read, METH_VARARGS, "read(stream, offset, address, bytes): to the host"},
    {"bytes", memory_bytes, METH_NOARGS, "bytes() -> how many"},
    {"handle", memory_handle, METH_NOARGS, "handle() -> what the plug-in calls it; None: lost"},
    {"host", memory_host, METH_NOARGS, "host() -> where the host uses it; None: nowhere"},
    {"dlpack", memory_dlpack, METH_VARARGS,
     "dlpack(code, bits, shape, strides, offset, versioned) -> a capsule that shares it"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_new, (void *)memory_new},
    {Py_tp_dealloc, (void *)memory_dealloc},
    {Py_tp_methods, memory_methods},
    {Py_tp_doc, "Memory(plugin, size, kind=1, address=0, keep=None): memory on a device; of "
                "kind 0 it is borrowed by its handle, of kind 8 the host's own"},
    {0, NULL},
};

PyType_Spec memory_spec = {
    .name = "dovetail._native.Memory",
    .basicsize = sizeof(Memory),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};

/* ---- Event ---- */

static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plugin", NULL};
    PyObject *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, plugin_type, &owner))
        return NULL;
    Event *self = (Event *)new_object(type);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_event_new(((Plugin *)owner)->plugin, &self->event, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return raise_error(&error);
}

static void event_dealloc(PyObject *object)
{
    Event *self = (Event *)object;
    Py_BEGIN_ALLOW_THREADS;
    dvt_event_free(self->event);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(self->owner);
    free_object(object);
}

static int check_signals(PyThreadState **released)
{
    PyEval_RestoreThread(*released);
    int raised = PyErr_CheckSignals();
    *released = PyEval_SaveThread();
    return raised;
}

/* Waits in slices, so that a signal handler of Python's can end it. NULL: it raised. */
static PyObject *wait_in_slices(dvt_status (*wait)(void *, uint64_t, dvt_error *), void *what,
                                double seconds)
{
    const double slice = 0.1;
    dvt_error error = {0, ""};
    dvt_status status;
    int raised = 0;
    PyThreadState *released = PyEval_SaveThread();
    for (bool last = false;; seconds -= slice) {
        last = seconds <= slice; /* also where it is no number */
        double now = last ? (seconds > 0 ? seconds : 0) : slice;
        status = wait(what, (uint64_t)(now * 1e9), &error);
        if (status != DVT_ERROR_NOT_YET || last)
            break;
        raised = check_signals(&released);
        if (raised)
            break;
    }
    PyEval_RestoreThread(released);
    if (raised)
        return NULL;
    if (status == DVT_OK || status == DVT_ERROR_NOT_YET)
        return PyBool_FromLong(status == DVT_OK);
    return raise_error(&error);
}

static dvt_status wait_for_event(void *event, uint64_t nanoseconds, dvt_error *error)
{
    return dvt_event_wait(event, nanoseconds, error);
}

static dvt_status wait_for_stream(void *stream, uint64_t nanoseconds, dvt_error *error)
{
    return dvt_stream_wait(stream, nanoseconds, error);
}

static PyObject *event_wait(PyObject *object, PyObject *args)
{
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds))
        return NULL;
    return wait_in_slices(wait_for_event, ((Event *)object)->event, seconds);
}

static PyMethodDef event_methods[] = {
    {"wait", event_wait, METH_VARARGS, "wait(seconds) -> whether it has happened by then"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_new, (void *)event_new},
    {Py_tp_dealloc, (void *)event_dealloc},
    {Py_tp_methods, event_methods},
    {Py_tp_doc, "Event(plugin): a point in a stream"},
    {0, NULL},
};

PyType_Spec event_spec = {
    .name = "dovetail._native.Event",
    .basicsize = sizeof(Event),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = event_slots,
};

/* ---- Stream ---- */

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plugin", "native", NULL};
    PyObject *owner, *native = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O", names, plugin_type, &owner, &native))
        return NULL;
    bool imports = native != NULL && native != Py_None;
    void *handle = imports ? PyLong_AsVoidPtr(native) : NULL;
    if (PyErr_Occurred())
        return NULL;
    Stream *self = (Stream *)new_object(type);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->held = PyList_New(0);
    plugin *p = ((Plugin *)owner)->plugin;
    dvt_error error = {0, ""};
    dvt_status status = DVT_ERROR_MEMORY;
    Py_BEGIN_ALLOW_THREADS;
    status = imports ? dvt_stream_import(p, handle, &self->stream, &error)
                     : dvt_stream_new(p, &self->stream, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK && self->held != NULL)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_Occurred() ? NULL : raise_error(&error);
}

static void stream_dealloc(PyObject *object)
{
    Stream *self = (Stream *)object;
    Py_BEGIN_ALLOW_THREADS; /* it waits for the stream */
    dvt_stream_free(self->stream);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(self->held);
    Py_XDECREF(self->owner);
    free_object(object);
}

/* Lets go of what belongs to events that have happened; -1 with an exception set. */
static int let_go(Stream *self)
{
    int failed = 0;
    while (!failed && PyList_Size(self->held) > 0) {
        PyObject *first = Py_NewRef(PyList_GetItem(self->held, 0));
        dvt_event *event = ((Event *)PyTuple_GetItem(first, 0))->event;
        dvt_status status;
        Py_BEGIN_ALLOW_THREADS;
        status = dvt_event_wait(event, 0, NULL);
        Py_END_ALLOW_THREADS;
        bool there = PyList_Size(self->held) > 0 && PyList_GetItem(self->held, 0) == first;
        if (there && status != DVT_ERROR_NOT_YET)
            failed = PyList_SetSlice(self->held, 0, 1, NULL);
        Py_DECREF(first); /* which may run any code */
        if (status == DVT_ERROR_NOT_YET)
            break;
    }
    return failed;
}

static PyObject *stream_wait(PyObject *object, PyObject *args)
{
    Stream *self = (Stream *)object;
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds))
        return NULL;
    PyObject *waited = wait_in_slices(wait_for_stream, self->stream, seconds);
    if (waited != NULL && let_go(self) != 0)
        Py_CLEAR(waited);
    return waited;
}

static PyObject *stream_follow(PyObject *object, PyObject *event)
{
    if (Py_TYPE(event) != event_type) {
        PyErr_SetString(PyExc_TypeError, "a stream follows an Event");
        return NULL;
    }
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_stream_follow(((Stream *)object)->stream, ((Event *)event)->event, &error);
    Py_END_ALLOW_THREADS;
    return status == DVT_OK ? Py_NewRef(Py_None) : raise_error(&error);
}

static PyObject *stream_record(PyObject *object, PyObject *unused)
{
    (void)unused;
    Stream *self = (Stream *)object;
    PyObject *made = PyObject_CallFunctionObjArgs((PyObject *)event_type, self->owner, NULL);
    if (made == NULL)
        return NULL;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_event_record(((Event *)made)->event, self->stream, &error);
    Py_END_ALLOW_THREADS;
    if (status == DVT_OK)
        return made;
    Py_DECREF(made);
    return raise_error(&error);
}

static PyObject *stream_native(PyObject *object, PyObject *unused)
{
    (void)unused;
    void *native = NULL;
    dvt_error error = {0, ""};
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_stream_native(((Stream *)object)->stream, &native, &error);
    Py_END_ALLOW_THREADS;
    return status == DVT_OK ? PyLong_FromVoidPtr(native) : raise_error(&error);
}

static int hold(Stream *self, PyObject *event, PyObject *what)
{
    PyObject *pair = PyTuple_Pack(2, event, what);
    int failed = pair == NULL || let_go(self) != 0 || PyList_Append(self->held, pair);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

static PyObject *stream_hold(PyObject *object, PyObject *args)
{
    PyObject *event, *what;
    if (!PyArg_ParseTuple(args, "O!O", event_type, &event, &what))
        return NULL;
    return hold((Stream *)object, event, what) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *stream_holds(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(PyList_Size(((Stream *)object)->held));
}

static PyMethodDef stream_methods[] = {
    {"wait", stream_wait, METH_VARARGS, "wait(seconds) -> whether all of it is done by then"},
    {"follow", stream_follow, METH_O, "follow(event): what comes next waits for it"},
    {"record", stream_record, METH_NOARGS, "record() -> an Event behind all it was given"},
    {"native", stream_native, METH_NOARGS, "native() -> what the vendor's library calls it"},
    {"hold", stream_hold, METH_VARARGS, "hold(event, what): keep it until that has happened"},
    {"holds", stream_holds, METH_NOARGS, "holds() -> how many things it keeps"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_new, (void *)stream_new},
    {Py_tp_dealloc, (void *)stream_dealloc},
    {Py_tp_methods, stream_methods},
    {Py_tp_doc, "Stream(plugin, native=None): a queue of a device, or the vendor's own"},
    {0, NULL},
};

PyType_Spec stream_spec = {
    .name = "dovetail._native.Stream",
    .basicsize = sizeof(Stream),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = stream_slots,
};

/* ---- runs ---- */

int read_dimensions(PyObject *given, int64_t *numbers, Py_ssize_t rank)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) != rank) {
        PyErr_SetString(PyExc_ValueError, "dimensions are a tuple of numbers");
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(given, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* A tensor on a device: (memory, code, bits, shape, strides, offset). */
static int read_device_tensor(PyObject *given, argument *a)
{
    PyObject *memory, *shape, *strides;
    int code, bits;
    long long offset;
    if (!PyArg_ParseTuple(given, "O!iiO!O!L", memory_type, &memory, &code, &bits, &PyTuple_Type,
                          &shape, &PyTuple_Type, &strides, &offset))
        return -1;
    Py_ssize_t rank = PyTuple_Size(shape);
    if (rank > MOST_DIMENSIONS || offset < 0) {
        PyErr_SetString(PyExc_ValueError, "too many dimensions, or a negative offset");
        return -1;
    }
    a->tensor = (dvt_tensor){.data = ((Memory *)memory)->buffer,
                             .device = {DVT_DEVICE_BUFFER, 0},
                             .ndim = (int32_t)rank,
                             .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                             .shape = a->shape,
                             .strides = a->strides,
                             .byte_offset = (uint64_t)offset};
    return read_dimensions(shape, a->shape, rank) || read_dimensions(strides, a->strides, rank)
               ? -1
               : 0;
}

/* What a run was called with, until the device needs it no more. */
typedef struct {
    size_t count;
    argument arguments[];
} given_arguments;

static const char KEPT[] = "dovetail.arguments";

static void drop_arguments(PyObject *capsule)
{
    given_arguments *g = PyCapsule_GetPointer(capsule, KEPT);
    for (size_t i = 0; i < g->count; i++)
        release_argument(&g->arguments[i]);
    PyMem_Free(g);
}

/* Those of a tuple, in a capsule that keeps them; NULL with an exception set. */
static PyObject *read_tensors(const Artifact *self, PyObject *tensors, given_arguments **made)
{
    size_t count = (size_t)PyTuple_Size(tensors);
    given_arguments *g = PyMem_Calloc(1, sizeof *g + count * sizeof *g->arguments);
    if (g == NULL)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(g, KEPT, drop_arguments);
    if (capsule == NULL)
        PyMem_Free(g);
    *made = g;
    for (size_t i = 0; capsule != NULL && i < count; i++) {
        PyObject *one = PyTuple_GetItem(tensors, (Py_ssize_t)i);
        argument *a = &g->arguments[g->count++];
        int failed = PyTuple_Check(one) ? read_device_tensor(one, a)
                                        : read_argument(one, a, self->plain);
        if (!failed && a->read_only && dvt_writes_inputs(self->artifact)) {
            raise_named("GuardFailed", "argument %zu is read-only, and the model writes to it",
                        i);
            failed = -1;
        }
        if (failed) {
            if (!PyErr_Occurred())
                raise_named("GuardFailed", "an argument cannot be read as a tensor");
            Py_CLEAR(capsule);
        }
    }
    return capsule;
}

static PyObject *plugin_object(const Artifact *self, const dvt_plugin *wanted)
{
    PyObject *all = self->whole != NULL ? self->whole->plugins : self->plugins;
    for (Py_ssize_t i = 0; all != NULL && i < PyTuple_Size(all); i++)
        if (((Plugin *)PyTuple_GetItem(all, i))->plugin == wanted)
            return PyTuple_GetItem(all, i);
    PyErr_SetString(PyExc_SystemError, "a result on the device of an unknown plug-in");
    return NULL;
}

static PyObject *numbers_of(const int64_t *numbers, int32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* A result, which is taken over: a tuple where it is on a device, else a Tensor. */
static PyObject *hand_out(const Artifact *self, dvt_managed *made, const dvt_plugin *where)
{
    const dvt_tensor *t = &made->tensor;
    if (t->device.type != DVT_DEVICE_BUFFER)
        return wrap_managed(made);
    PyObject *owner = plugin_object(self, where);
    Memory *memory = owner != NULL ? new_memory(owner, NULL) : NULL;
    PyObject *result = NULL;
    if (memory != NULL) {
        memory->buffer = made->tensor.data;
        made->tensor.data = NULL;
        result = Py_BuildValue("(NiiNN)", (PyObject *)memory, t->dtype.code, t->dtype.bits,
                               numbers_of(t->shape, t->ndim), numbers_of(t->strides, t->ndim));
    }
    made->deleter(made);
    return result;
}

static PyObject *collect(const Artifact *self, dvt_managed **outputs, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count; i++) {
        if (list == NULL) {
            outputs[i]->deleter(outputs[i]);
            continue;
        }
        PyObject *one = hand_out(self, outputs[i], dvt_output_plugin(self->artifact, i));
        if (one == NULL || PyList_SetItem(list, (Py_ssize_t)i, one) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *run_arguments(Artifact *self, const given_arguments *g, Stream *stream,
                               Event *done)
{
    size_t count = dvt_output_count(self->artifact);
    dvt_tensor *tensors = PyMem_Calloc(g->count + count + 1, sizeof *tensors);
    dvt_managed **outputs = PyMem_Calloc(count + 1, sizeof *outputs);
    PyObject *made = NULL;
    dvt_error error;
    if (tensors == NULL || outputs == NULL) {
        PyMem_Free(tensors);
        PyMem_Free(outputs);
        return PyErr_NoMemory();
    }
    for (size_t i = 0; i < g->count; i++)
        tensors[i] = g->arguments[i].tensor;
    for (size_t i = 0; i < count; i++)
        if (dvt_output_plugin(self->artifact, i) != NULL)
            tensors[g->count + i].device.type = DVT_DEVICE_BUFFER;
    run_place place = {tensors + g->count, stream != NULL ? stream->stream : NULL,
                       done != NULL ? done->event : NULL};
    if (artifact_run_native(self, tensors, g->count, outputs, count, &place, &error) == DVT_OK)
        made = collect(self, outputs, count);
    else
        raise_error(&error);
    PyMem_Free(tensors);
    PyMem_Free(outputs);
    return made;
}

PyObject *artifact_run_on(PyObject *object, PyObject *args)
{
    Artifact *self = (Artifact *)object;
    PyObject *tensors, *on, *after, *stream, *event;
    given_arguments *g = NULL;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &tensors, &on, &after) ||
        read_optional(on, stream_type, &stream) != 0 ||
        read_optional(after, event_type, &event) != 0)
        return NULL;
    if (stream != NULL && event == NULL) {
        PyErr_SetString(PyExc_ValueError, "a run on a stream needs an event");
        return NULL;
    }
    PyObject *kept = read_tensors(self, tensors, &g);
    if (kept == NULL)
        return NULL;
    PyObject *made = run_arguments(self, g, (Stream *)stream, (Event *)event);
    PyObject *all =
        made != NULL && stream != NULL ? PyTuple_Pack(3, tensors, kept, made) : NULL;
    if (made != NULL && stream != NULL &&
        (all == NULL || hold((Stream *)stream, event, all) != 0)) {
        /* The device still uses what nobody would keep. */
        PyObject *waited = wait_in_slices(wait_for_stream, ((Stream *)stream)->stream, 1e9);
        Py_XDECREF(waited);
        Py_CLEAR(made);
    }
    Py_XDECREF(all);
    Py_DECREF(kept);
    return made;
}

PyObject *artifact_plugins(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Artifact *self = (Artifact *)object;
    PyObject *all = self->whole != NULL ? self->whole->plugins : self->plugins;
    return all != NULL ? Py_NewRef(all) : PyTuple_New(0);
}
