/* dovetail._native.Tensor: what a run hands out where no framework's tensors came in. Memory is
 * shared with NumPy and others by the buffer protocol and DLPack. Also how arguments are read.
 */
#include "bindings.h"
#include "internal.h"

PyTypeObject *tensor_type;

typedef struct {
    PyObject_HEAD dvt_managed *managed;
    Py_ssize_t *dims; /* shape, then strides in bytes, for the buffer protocol */
} Tensor;

/* ---- dtypes and buffer formats ---- */

static const struct {
    const char *format;
    uint8_t code, bits;
} FORMATS[] = {
    {"f", DVT_FLOAT, 32},     {"d", DVT_FLOAT, 64}, {"e", DVT_FLOAT, 16},
    {"?", DVT_BOOL, 8},       {"q", DVT_INT, 64},   {"l", DVT_INT, 64},
    {"i", DVT_INT, 32},       {"h", DVT_INT, 16},   {"b", DVT_INT, 8},
    {"B", DVT_UINT, 8},       {"H", DVT_UINT, 16},  {"I", DVT_UINT, 32},
    {"Q", DVT_UINT, 64},      {"L", DVT_UINT, 64},  {"Zf", DVT_COMPLEX, 64},
    {"Zd", DVT_COMPLEX, 128},
};

static const char *format_of(dvt_dtype dtype)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (FORMATS[i].code == dtype.code && FORMATS[i].bits == dtype.bits)
            return FORMATS[i].format;
    return NULL;
}

static bool dtype_of(const char *format, Py_ssize_t item, dvt_dtype *dtype)
{
    if (format == NULL)
        format = "B";
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].format, format) == 0 && FORMATS[i].bits == item * 8) {
            *dtype = (dvt_dtype){FORMATS[i].code, FORMATS[i].bits, 1};
            return true;
        }
    return false;
}

/* ---- the type ---- */

PyObject *wrap_managed(dvt_managed *managed)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(tensor_type, Py_tp_alloc);
    Tensor *self = (Tensor *)alloc(tensor_type, 0);
    size_t rank = (size_t)managed->tensor.ndim;
    if (self != NULL) {
        self->managed = managed;
        self->dims = PyMem_Malloc((2 * rank + 1) * sizeof *self->dims);
        if (self->dims == NULL) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
        for (size_t i = 0; i < rank; i++) {
            self->dims[i] = (Py_ssize_t)managed->tensor.shape[i];
            self->dims[rank + i] = (Py_ssize_t)((size_t)managed->tensor.strides[i] *
                                                (managed->tensor.dtype.bits / 8u));
        }
    } else if (managed->deleter != NULL) {
        managed->deleter(managed);
    }
    return (PyObject *)self;
}

static void tensor_dealloc(PyObject *object)
{
    Tensor *self = (Tensor *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->managed != NULL && self->managed->deleter != NULL)
        self->managed->deleter(self->managed);
    PyMem_Free(self->dims);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Whether a view lies as a consumer asks that does not look at strides. */
static bool is_asked_for(const Py_buffer *view, int flags)
{
    static const struct {
        int flags;
        char order;
    } asked[] = {
        {PyBUF_C_CONTIGUOUS, 'C'}, {PyBUF_F_CONTIGUOUS, 'F'}, {PyBUF_ANY_CONTIGUOUS, 'A'}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if ((flags & asked[i].flags) == asked[i].flags &&
            !PyBuffer_IsContiguous(view, asked[i].order))
            return false;
    return true;
}

static int tensor_buffer(PyObject *object, Py_buffer *view, int flags)
{
    Tensor *self = (Tensor *)object;
    const dvt_tensor *t = &self->managed->tensor;
    const char *format = format_of(t->dtype);
    view->obj = NULL;
    if (format == NULL || (flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
        PyErr_SetString(PyExc_BufferError, format == NULL
                                               ? "this dtype has no buffer format; use DLPack"
                                               : "ask for a strided buffer");
        return -1;
    }
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    view->buf = (char *)t->data + t->byte_offset;
    view->itemsize = t->dtype.bits / 8;
    view->len = (Py_ssize_t)count * view->itemsize;
    view->readonly = 0;
    view->format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL;
    view->ndim = t->ndim;
    view->shape = self->dims;
    view->strides = self->dims + t->ndim;
    view->suboffsets = NULL;
    view->internal = NULL;
    if (!is_asked_for(view, flags)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous: copy it first");
        return -1;
    }
    view->obj = Py_NewRef(object);
    return 0;
}

static PyObject *tensor_shape(PyObject *object, void *closure)
{
    (void)closure;
    const dvt_tensor *t = &((Tensor *)object)->managed->tensor;
    PyObject *shape = PyTuple_New(t->ndim);
    for (int32_t i = 0; shape != NULL && i < t->ndim; i++) {
        PyObject *size = PyLong_FromLongLong(t->shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) != 0)
            Py_CLEAR(shape);
    }
    return shape;
}

/* ---- DLPack, both forms of the capsule ---- */

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
    PyObject *owner; /* of the memory */
    void *copy;      /* or: shape, strides and elements of its own */
} shared;

#define IS_COPIED 2u /* of DLPack's flags */

static void drop_shared(shared *s)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(s->owner);
    PyMem_Free(s->copy);
    PyMem_Free(s);
    PyGILState_Release(state);
}

static void drop_versioned(dvt_managed *self)
{
    drop_shared((shared *)(void *)self);
}

static void drop_old(void *self)
{
    drop_shared(self);
}

static void drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name == NULL || strncmp(name, "used", 4) == 0)
        return;
    shared *s = PyCapsule_GetPointer(capsule, name);
    if (s != NULL)
        drop_shared(s);
}

/* Gives a tensor, row-major, memory of its own. NULL: there is none. */
static void *copy_tensor(const dvt_tensor *t, dvt_tensor *made)
{
    size_t rank = (size_t)t->ndim, item = t->dtype.bits / 8u, head = 2 * rank * sizeof(int64_t);
    char *block = PyMem_Malloc(head + (size_t)dvt_numel(t) * item + DVT_ALIGN);
    if (block == NULL)
        return NULL;
    *made = *t;
    made->byte_offset = 0;
    made->shape = (int64_t *)(void *)block;
    made->strides = made->shape + rank;
    int64_t step = 1;
    for (size_t i = rank; i-- > 0; step *= t->shape[i]) {
        made->shape[i] = t->shape[i];
        made->strides[i] = step;
    }
    made->data = block + head + (DVT_ALIGN - (uintptr_t)(block + head) % DVT_ALIGN) % DVT_ALIGN;
    dvt_copy_tensor(made, t);
    return block;
}

/* False, with an error set: the tensor is asked for on another device than its own. */
static bool is_here(PyObject *device)
{
    int type = DVT_CPU, number = 0;
    if (device == NULL || device == Py_None)
        return true;
    if (!PyArg_Parse(device, "(ii)", &type, &number))
        return false;
    if (type != DVT_CPU)
        PyErr_SetString(PyExc_BufferError, "a result of the C runtime lies on the CPU");
    return type == DVT_CPU;
}

/* A tensor to hand out: this one's memory, or a copy of it. */
static shared *new_shared(PyObject *object, bool copies, dvt_tensor *tensor)
{
    const dvt_tensor *t = &((Tensor *)object)->managed->tensor;
    shared *s = PyMem_Calloc(1, sizeof *s);
    if (s != NULL && copies)
        s->copy = copy_tensor(t, tensor);
    if (s == NULL || (copies && s->copy == NULL)) {
        PyMem_Free(s);
        PyErr_NoMemory();
        return NULL;
    }
    if (!copies) {
        *tensor = *t;
        s->owner = Py_NewRef(object);
    }
    return s;
}

static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &version, &device,
                                     &copy) ||
        !is_here(device))
        return NULL;
    int copies = copy != NULL && copy != Py_None ? PyObject_IsTrue(copy) : 0;
    dvt_tensor tensor;
    shared *s = copies < 0 ? NULL : new_shared(object, copies > 0, &tensor);
    if (s == NULL)
        return NULL;
    bool versioned = version != NULL && version != Py_None;
    if (versioned) {
        s->managed.versioned.version.major = 1;
        s->managed.versioned.flags = copies ? IS_COPIED : 0;
        s->managed.versioned.tensor = tensor;
        s->managed.versioned.deleter = drop_versioned;
    } else {
        s->managed.old.tensor = tensor;
        s->managed.old.deleter = drop_old;
    }
    PyObject *capsule =
        PyCapsule_New(s, versioned ? "dltensor_versioned" : "dltensor", drop_capsule);
    if (capsule == NULL)
        drop_shared(s);
    return capsule;
}

static PyObject *tensor_device(PyObject *object, PyObject *unused)
{
    (void)object;
    (void)unused;
    return Py_BuildValue("(ii)", DVT_CPU, 0);
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A DLPack capsule that shares this tensor's memory, or with copy=True holds a copy."},
    {"__dlpack_device__", tensor_device, METH_NOARGS, "DLPack's device type and number."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_attributes[] = {
    {"shape", tensor_shape, NULL, "The size of each dimension.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_dealloc, (void *)tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_attributes},
    {Py_bf_getbuffer, (void *)tensor_buffer},
    {Py_tp_doc,
     "A result: read it with memoryview, numpy.asarray or anything that takes DLPack."},
    {0, NULL},
};

PyType_Spec tensor_spec = {
    .name = "dovetail._native.Tensor",
    .basicsize = sizeof(Tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensor_slots,
};

/* ---- arguments ---- */

/* What is known of a type whose tensors came before. Guarded by the interpreter lock. */
typedef struct {
    PyTypeObject *type; /* a reference is held */
    const exchange_api *api;
    PyObject *is_neg, *is_conj; /* its methods, or NULL */
} known_type;

static PyObject *method_of(PyTypeObject *type, const char *name)
{
    PyObject *method = PyObject_GetAttrString((PyObject *)type, name);
    if (method == NULL)
        PyErr_Clear();
    return method;
}

static const exchange_api *api_of(PyTypeObject *type)
{
    PyObject *capsule = method_of(type, "__dlpack_c_exchange_api__");
    if (capsule == NULL)
        return NULL;
    const exchange_api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (api == NULL)
        PyErr_Clear();
    return api != NULL && api->version.major == 1 && api->tensor_from_object ? api : NULL;
}

/* A model's arguments are tensors and parameters: two types, seen at every call. */
static const known_type *known(PyTypeObject *type)
{
    static known_type seen[4];
    static unsigned next;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (seen[i].type == type)
            return &seen[i];
    known_type found = {type, api_of(type), NULL, NULL};
    if (found.api == NULL)
        return NULL;
    found.is_neg = method_of(type, "is_neg");
    found.is_conj = method_of(type, "is_conj");
    known_type *place = &seen[next++ % (sizeof seen / sizeof *seen)], previous = *place;
    Py_INCREF((PyObject *)type);
    *place = found;
    Py_XDECREF((PyObject *)previous.type);
    Py_XDECREF(previous.is_neg);
    Py_XDECREF(previous.is_conj);
    return place;
}

const exchange_api *exchange_of(PyTypeObject *type)
{
    const known_type *found = known(type);
    return found != NULL ? found->api : NULL;
}

static int read_buffer(PyObject *object, argument *a)
{
    if (PyObject_GetBuffer(object, &a->view, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0)
        return -1;
    a->through_buffer = true;
    a->read_only = a->view.readonly;
    if (!dtype_of(a->view.format, a->view.itemsize, &a->tensor.dtype) || a->view.ndim > 16) {
        raise_named("GuardFailed", "an argument of buffer format '%s' with %d dimensions",
                    a->view.format ? a->view.format : "B", a->view.ndim);
        return -1;
    }
    a->tensor.data = a->view.buf;
    a->tensor.device = (dvt_device){DVT_CPU, 0};
    a->tensor.ndim = a->view.ndim;
    a->tensor.shape = a->shape;
    a->tensor.strides = a->strides;
    for (int i = 0; i < a->view.ndim; i++) {
        a->shape[i] = a->view.shape[i];
        if (a->view.strides[i] % a->view.itemsize != 0) {
            raise_named("GuardFailed",
                        "an argument whose strides are no multiple of its element size");
            return -1;
        }
        a->strides[i] = a->view.strides[i] / a->view.itemsize;
    }
    return 0;
}

static PyObject *call_dlpack(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (method == NULL)
        return NULL;
    PyObject *none = PyTuple_New(0);
    PyObject *wanted = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    PyObject *capsule = none && wanted ? PyObject_Call(method, none, wanted) : NULL;
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* an older producer knows no max_version */
        capsule = none ? PyObject_Call(method, none, NULL) : NULL;
    }
    Py_XDECREF(none);
    Py_XDECREF(wanted);
    Py_DECREF(method);
    return capsule;
}

static int read_capsule(PyObject *object, argument *a)
{
    a->capsule = call_dlpack(object);
    if (a->capsule == NULL)
        return -1;
    if (PyCapsule_IsValid(a->capsule, "dltensor_versioned")) {
        const dvt_managed *m = PyCapsule_GetPointer(a->capsule, "dltensor_versioned");
        if (m->version.major == 1) {
            a->tensor = m->tensor;
            a->read_only = m->flags & 1;
            return 0;
        }
    } else if (PyCapsule_IsValid(a->capsule, "dltensor")) {
        a->tensor = ((const old_managed *)PyCapsule_GetPointer(a->capsule, "dltensor"))->tensor;
        return 0;
    }
    raise_named("GuardFailed", "an argument whose __dlpack__ gives no DLPack 1 capsule");
    return -1;
}

/* A framework's error as ours: its first line says enough. */
static int refuse(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    char line[200] = "unknown";
    if (bytes != NULL) {
        strncpy(line, PyBytes_AsString(bytes), sizeof line - 1);
        line[strcspn(line, "\n")] = 0;
    }
    PyErr_Clear();
    raise_named("GuardFailed", "an argument cannot be read as a tensor in memory: %s", line);
    Py_XDECREF(text);
    Py_XDECREF(bytes);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

/* PyTorch's lazy signs: a tensor with its negative or conjugate bit set holds other values than
 * its memory, and DLPack does not say so. Returns 1 if set, 0 if not or unknown here, -1 on
 * error. */
static int has_bit(PyObject *object, PyObject *method)
{
    PyObject *answer =
        method != NULL ? PyObject_CallFunctionObjArgs(method, object, NULL) : NULL;
    if (answer == NULL) {
        PyErr_Clear();
        return 0;
    }
    int set = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return set;
}

int is_negated(PyObject *object)
{
    const known_type *found = known(Py_TYPE(object));
    return found != NULL ? has_bit(object, found->is_neg) : 0;
}

static int read_framework(PyObject *object, const known_type *type, argument *a, bool plain)
{
    if (a->api->tensor_from_object(object, &a->tensor) != 0)
        return refuse();
    if (plain)
        return 0;
    bool complex = a->tensor.dtype.code == DVT_COMPLEX;
    int negative = has_bit(object, type->is_neg);
    int conjugate = complex ? has_bit(object, type->is_conj) : 0;
    if (negative < 0 || conjugate < 0)
        return -1;
    if (!negative && !conjugate)
        return 0;
    a->resolved = PyObject_CallMethod(object, negative ? "resolve_neg" : "resolve_conj", NULL);
    if (a->resolved != NULL && negative && conjugate) {
        PyObject *half = a->resolved;
        a->resolved = PyObject_CallMethod(half, "resolve_conj", NULL);
        Py_DECREF(half);
    }
    a->read_only = true;
    if (a->resolved == NULL || a->api->tensor_from_object(a->resolved, &a->tensor) != 0)
        return refuse();
    return 0;
}

/* A Python number: an int64 tensor of rank 0, whose element lies in the argument itself. */
static int read_number(PyObject *object, argument *a)
{
    a->shape[0] = PyLong_AsLongLong(object);
    if (a->shape[0] == -1 && PyErr_Occurred())
        return refuse();
    a->tensor = (dvt_tensor){.data = a->shape,
                             .device = {DVT_CPU, 0},
                             .dtype = {DVT_INT, 64, 1},
                             .shape = a->shape,
                             .strides = a->strides};
    return 0;
}

int read_argument(PyObject *object, argument *a, bool plain)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == tensor_type) {
        a->tensor = ((Tensor *)object)->managed->tensor;
        return 0;
    }
    if (PyLong_CheckExact(object))
        return read_number(object, a);
    const known_type *found = known(type);
    if (found != NULL) {
        a->api = found->api;
        return read_framework(object, found, a, plain);
    }
    if (PyObject_CheckBuffer(object))
        return read_buffer(object, a);
    if (PyObject_HasAttrString(object, "__dlpack__"))
        return read_capsule(object, a);
    PyObject *name = PyType_GetName(type);
    PyObject *text = name ? PyUnicode_AsUTF8String(name) : NULL;
    if (text != NULL)
        raise_named("GuardFailed",
                    "an argument is a %s; give tensors, arrays or what has __dlpack__",
                    PyBytes_AsString(text));
    Py_XDECREF(name);
    Py_XDECREF(text);
    return -1;
}

PyObject *hold_tensor(PyObject *module, PyObject *object)
{
    (void)module;
    const exchange_api *api = exchange_of(Py_TYPE(object));
    dvt_managed *managed = NULL;
    if (api != NULL && api->managed_from_object(object, &managed) == 0)
        return wrap_managed(managed);
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "a %R cannot be held", (PyObject *)Py_TYPE(object));
    return NULL;
}

void release_argument(argument *a)
{
    if (a->through_buffer)
        PyBuffer_Release(&a->view);
    Py_XDECREF(a->capsule);
    Py_XDECREF(a->resolved);
}
