/* dovetail._native.GpuProgram: a segment on a GPU as one call.
 *
 * A program is a list of steps over a list of values, of which the first are the inputs: memory
 * is made, kernels are launched, PyTorch is called. Launches need nothing of CUDA's but the
 * address of one function of its driver, so that this builds everywhere.
 */
#include "gpu.h"

#include <stdlib.h>

#define DEVICE_CUDA 2  /* DLPack's number */
#define ALIGNED     15 /* bits of an address that are zero where accesses are 16 bytes wide */
#define MOST_ARGS   1024
#define SCRATCH     2 /* pointers behind a kernel's own arguments that are null */
#define MOST_DIMS   64

typedef int (*launch_function)(void *function, unsigned blocks, unsigned blocks_y,
                               unsigned blocks_z, unsigned threads, unsigned threads_y,
                               unsigned threads_z, unsigned shared, void *stream,
                               void **arguments, void **extra);

typedef enum { STEP_EMPTY, STEP_LAUNCH, STEP_CALL, STEP_PRODUCT, STEP_FREE } step_kind;
static const char *const STEP_NAMES[] = {"empty", "launch", "call", "product", "free"};

typedef struct {
    bool is_value; /* a tensor's address, by its place among the values; else a number */
    uint64_t word;
} launch_argument;

typedef struct {
    step_kind kind;
    Py_ssize_t place; /* of the value that is made or forgotten */
    PyObject *given;  /* what makes memory, or what is called; its arguments for the former */
    void *function;   /* of the launch */
    unsigned blocks, threads, shared;
    uint32_t count;
    launch_argument *arguments;
    gpu_product *product;
} gpu_step;

/* How an input has to lie for the kernels to be right. */
typedef struct {
    Py_ssize_t place;
    dvt_dtype dtype;
    int32_t rank;
    int64_t *sizes; /* then as many strides */
} gpu_input;

typedef struct {
    PyObject_HEAD launch_function launch;
    int32_t device; /* -1: memory of the processor */
    Py_ssize_t values;
    PyObject *tensor, *empty, *align, *fail; /* PyTorch's type, and functions of Python's */
    uint32_t input_count, step_count, output_count;
    gpu_input *inputs;
    gpu_step *steps;
    Py_ssize_t *outputs; /* NULL: all values are handed out */
} GpuProgram;

/* ---- reading a program ---- */

static void *room_for(Py_ssize_t count, size_t size)
{
    void *made = count < 0 ? NULL : calloc((size_t)count + 1, size);
    if (made == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    return made;
}

static int read_sizes(PyObject *tuple, int32_t rank, int64_t *to)
{
    for (int32_t i = 0; i < rank; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        to[i] = item != NULL ? PyLong_AsLongLong(item) : -1;
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* (place, dtype's code, its bits, sizes, strides) */
static int read_input(PyObject *object, gpu_input *to)
{
    PyObject *sizes, *strides;
    int code, bits;
    if (!PyArg_ParseTuple(object, "niiO!O!", &to->place, &code, &bits, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides))
        return -1;
    Py_ssize_t rank = PyTuple_Size(sizes);
    if (rank != PyTuple_Size(strides) || rank > MOST_DIMS) {
        PyErr_SetString(PyExc_ValueError, "an input's sizes and strides do not agree");
        return -1;
    }
    to->dtype = (dvt_dtype){(uint8_t)code, (uint8_t)bits, 1};
    to->rank = (int32_t)rank;
    to->sizes = room_for(2 * rank, sizeof *to->sizes);
    if (to->sizes == NULL || read_sizes(sizes, to->rank, to->sizes) != 0)
        return -1;
    return read_sizes(strides, to->rank, to->sizes + rank);
}

/* [(True, place of a value) or (False, number)] */
static int read_arguments(PyObject *list, gpu_step *to)
{
    Py_ssize_t count = PyList_Size(list);
    if (count > MOST_ARGS) {
        PyErr_Format(PyExc_ValueError, "a kernel of %zd arguments", count);
        return -1;
    }
    to->arguments = room_for(count, sizeof *to->arguments);
    if (to->arguments == NULL)
        return -1;
    to->count = (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        int is_value;
        long long word;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "pL", &is_value, &word))
            return -1;
        to->arguments[i] = (launch_argument){is_value, (uint64_t)word};
    }
    return 0;
}

static int read_step(PyObject *object, gpu_step *to)
{
    PyObject *name, *rest, *list;
    unsigned long long function;
    if (!PyArg_ParseTuple(object, "UO!", &name, &PyTuple_Type, &rest))
        return -1;
    size_t kind = 0;
    while (kind < sizeof STEP_NAMES / sizeof *STEP_NAMES &&
           PyUnicode_CompareWithASCIIString(name, STEP_NAMES[kind]) != 0)
        kind++;
    to->kind = (step_kind)kind;
    switch (to->kind) {
    case STEP_EMPTY:
        if (!PyArg_ParseTuple(rest, "nO!", &to->place, &PyTuple_Type, &list))
            return -1;
        to->given = Py_NewRef(list);
        return 0;
    case STEP_LAUNCH:
        if (!PyArg_ParseTuple(rest, "KIIIO!", &function, &to->blocks, &to->threads, &to->shared,
                              &PyList_Type, &list))
            return -1;
        to->function = (void *)(uintptr_t)function;
        return read_arguments(list, to);
    case STEP_CALL:
        if (!PyArg_ParseTuple(rest, "O", &list))
            return -1;
        to->given = Py_NewRef(list);
        return 0;
    case STEP_PRODUCT:
        to->product = gpu_product_new(rest);
        return to->product != NULL ? 0 : -1;
    case STEP_FREE:
        return PyArg_ParseTuple(rest, "n", &to->place) ? 0 : -1;
    }
    PyErr_Format(PyExc_ValueError, "a step %R", name);
    return -1;
}

static int read_inputs(GpuProgram *self, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if ((self->inputs = room_for(count, sizeof *self->inputs)) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->input_count++; /* before it is read, so that what it holds is freed */
        if (read_input(PyList_GetItem(list, i), &self->inputs[i]) != 0)
            return -1;
    }
    return 0;
}

static int read_steps(GpuProgram *self, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if ((self->steps = room_for(count, sizeof *self->steps)) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->step_count++;
        if (read_step(PyList_GetItem(list, i), &self->steps[i]) != 0)
            return -1;
    }
    return 0;
}

static int read_outputs(GpuProgram *self, PyObject *list)
{
    if (list == Py_None)
        return 0;
    Py_ssize_t count = PyList_Size(list);
    if (count < 0 || (self->outputs = room_for(count, sizeof *self->outputs)) == NULL)
        return -1;
    self->output_count = (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->outputs[i] = PyLong_AsSsize_t(PyList_GetItem(list, i));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static bool is_place(const GpuProgram *self, Py_ssize_t place)
{
    return place >= 0 && place < self->values;
}

/* Every place that a program names is one of its values. */
static int check_places(const GpuProgram *self)
{
    bool good = true;
    for (uint32_t i = 0; i < self->input_count; i++)
        good = good && is_place(self, self->inputs[i].place);
    for (uint32_t i = 0; i < self->output_count; i++)
        good = good && is_place(self, self->outputs[i]);
    for (uint32_t i = 0; i < self->step_count; i++) {
        const gpu_step *s = &self->steps[i];
        if (s->kind == STEP_EMPTY || s->kind == STEP_FREE)
            good = good && is_place(self, s->place);
        for (uint32_t n = 0; n < s->count; n++)
            good = good && (!s->arguments[n].is_value ||
                            is_place(self, (Py_ssize_t)s->arguments[n].word));
        if (s->kind == STEP_PRODUCT)
            good = good && gpu_product_within(s->product, self->values);
    }
    if (!good)
        PyErr_SetString(PyExc_ValueError, "a place that no value has");
    return good ? 0 : -1;
}

static PyObject *gpu_program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"launch", "device", "values", "inputs", "steps", "outputs",
                            "tensor", "empty",  "align",  "fail",   NULL};
    unsigned long long launch;
    int device;
    Py_ssize_t values;
    PyObject *inputs, *steps, *outputs, *tensor, *empty, *align, *fail;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KinO!O!OO!OOO", names, &launch, &device,
                                     &values, &PyList_Type, &inputs, &PyList_Type, &steps,
                                     &outputs, &PyType_Type, &tensor, &empty, &align, &fail))
        return NULL;
    GpuProgram *self = (GpuProgram *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    void *address = (void *)(uintptr_t)launch;
    memcpy(&self->launch, &address, sizeof address);
    self->device = device;
    self->values = values;
    self->tensor = Py_NewRef(tensor);
    self->empty = Py_NewRef(empty);
    self->align = Py_NewRef(align);
    self->fail = Py_NewRef(fail);
    if (read_inputs(self, inputs) != 0 || read_steps(self, steps) != 0 ||
        read_outputs(self, outputs) != 0 || check_places(self) != 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void gpu_program_dealloc(PyObject *object)
{
    GpuProgram *self = (GpuProgram *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (uint32_t i = 0; i < self->input_count; i++)
        free(self->inputs[i].sizes);
    for (uint32_t i = 0; i < self->step_count; i++) {
        Py_XDECREF(self->steps[i].given);
        free(self->steps[i].arguments);
        gpu_product_free(self->steps[i].product);
    }
    free(self->inputs);
    free(self->steps);
    free(self->outputs);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->empty);
    Py_XDECREF(self->align);
    Py_XDECREF(self->fail);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- running it ---- */

int gpu_tensor(PyObject *object, dvt_tensor *to)
{
    const exchange_api *api = object != NULL ? exchange_of(Py_TYPE(object)) : NULL;
    if (api != NULL && api->tensor_from_object(object, to) == 0)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a value is no tensor that can be read from C");
    return -1;
}

static bool lies_as(const dvt_tensor *t, const gpu_input *wanted)
{
    const int64_t *strides = wanted->sizes + wanted->rank;
    if (t->ndim != wanted->rank || t->dtype.code != wanted->dtype.code ||
        t->dtype.bits != wanted->dtype.bits)
        return false;
    bool same = true, empty = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] != wanted->sizes[i])
            return false;
        empty = empty || t->shape[i] == 0;
        same = same && (t->shape[i] == 1 || t->strides[i] == strides[i]);
    }
    return same || empty;
}

/* 1: the inputs lie as the kernels need them, 0: not all do, -1: an error is set. */
static int fits(const GpuProgram *self, PyObject *values)
{
    for (uint32_t i = 0; i < self->input_count; i++) {
        PyObject *object = PyList_GetItem(values, self->inputs[i].place);
        dvt_tensor tensor;
        if (object == NULL)
            return -1;
        if (exchange_of(Py_TYPE(object)) == NULL)
            return 0;
        if (gpu_tensor(object, &tensor) != 0)
            return -1;
        int negative = is_negated(object);
        if (negative != 0 || !lies_as(&tensor, &self->inputs[i]))
            return negative < 0 ? -1 : 0;
    }
    return 1;
}

/* The address of a value; one that accesses cannot be wide at is copied, which `kept` holds. */
static int address_of(const GpuProgram *self, PyObject *object, PyObject **kept, uint64_t *to)
{
    dvt_tensor tensor;
    if (gpu_tensor(object, &tensor) != 0)
        return -1;
    *to = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    if ((*to & ALIGNED) == 0)
        return 0;
    PyObject *copy = PyObject_CallFunctionObjArgs(self->align, object, NULL);
    if (copy == NULL)
        return -1;
    if (*kept == NULL)
        *kept = PyList_New(0);
    int failed = *kept == NULL || PyList_Append(*kept, copy) != 0;
    Py_DECREF(copy); /* the list holds it */
    if (failed || gpu_tensor(copy, &tensor) != 0)
        return -1;
    *to = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    return 0;
}

static int launch(const GpuProgram *self, const gpu_step *s, PyObject *values, void *stream)
{
    uint64_t words[MOST_ARGS + SCRATCH];
    void *places[MOST_ARGS + SCRATCH];
    PyObject *kept = NULL;
    int code = 0;
    if (s->blocks == 0)
        return 0;
    for (uint32_t i = 0; i < s->count + SCRATCH; i++) {
        places[i] = &words[i];
        words[i] = i < s->count ? s->arguments[i].word : 0;
        if (i < s->count && s->arguments[i].is_value &&
            address_of(self, PyList_GetItem(values, (Py_ssize_t)words[i]), &kept, &words[i]) !=
                0) {
            Py_XDECREF(kept);
            return -1;
        }
    }
    Py_BEGIN_ALLOW_THREADS; /* a full queue makes it wait */
    code = self->launch(s->function, s->blocks, 1, 1, s->threads, 1, 1, s->shared, stream,
                        places, NULL);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(kept); /* memory is freed in the order of the stream */
    if (code == 0)
        return 0;
    PyObject *raised = PyObject_CallFunction(self->fail, "i", code);
    Py_XDECREF(raised);
    if (raised != NULL)
        PyErr_Format(PyExc_RuntimeError, "a launch failed with code %d", code);
    return -1;
}

static int call(PyObject *function, PyObject *values)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(function, values, NULL);
    Py_XDECREF(answer);
    return answer != NULL ? 0 : -1;
}

static int run_step(const GpuProgram *self, gpu_step *s, PyObject *values, void *stream)
{
    switch (s->kind) {
    case STEP_EMPTY: {
        PyObject *made = PyObject_Call(self->empty, s->given, NULL);
        return made != NULL ? PyList_SetItem(values, s->place, made) : -1;
    }
    case STEP_LAUNCH:
        return launch(self, s, values, stream);
    case STEP_CALL:
        return call(s->given, values);
    case STEP_PRODUCT:
        return gpu_product_run(s->product, values, self->device);
    case STEP_FREE:
        return PyList_SetItem(values, s->place, Py_NewRef(Py_None));
    }
    return -1;
}

/* The stream that PyTorch works on. */
static int stream_of(const GpuProgram *self, void **stream)
{
    *stream = NULL;
    if (self->device < 0)
        return 0;
    const exchange_api *api = exchange_of((PyTypeObject *)self->tensor);
    if (api != NULL && api->current_stream != NULL &&
        api->current_stream(DEVICE_CUDA, self->device, stream) == 0)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "PyTorch does not say its current stream");
    return -1;
}

static PyObject *picked(const GpuProgram *self, PyObject *values)
{
    PyObject *list = PyList_New(self->output_count);
    for (uint32_t i = 0; list != NULL && i < self->output_count; i++) {
        PyObject *value = PyList_GetItem(values, self->outputs[i]);
        if (value == NULL || PyList_SetItem(list, i, Py_NewRef(value)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *gpu_program_run(PyObject *object, PyObject *inputs)
{
    GpuProgram *self = (GpuProgram *)object;
    PyObject *values = PySequence_List(inputs), *made = NULL;
    void *stream;
    if (values == NULL)
        return NULL;
    Py_ssize_t given = PyList_Size(values);
    if (given > self->values) {
        PyErr_Format(PyExc_ValueError, "%zd inputs where there are %zd values", given,
                     self->values);
        goto done;
    }
    for (Py_ssize_t i = given; i < self->values; i++)
        if (PyList_Append(values, Py_None) != 0)
            goto done;
    int fit = fits(self, values);
    if (fit == 0)
        made = Py_NewRef(Py_None);
    if (fit <= 0 || stream_of(self, &stream) != 0)
        goto done;
    if (PyList_SetSlice(inputs, 0, PyList_Size(inputs), NULL) != 0)
        goto done;
    for (uint32_t i = 0; i < self->step_count; i++)
        if (run_step(self, &self->steps[i], values, stream) != 0)
            goto done;
    made = self->outputs != NULL ? picked(self, values) : Py_NewRef(values);
done:
    Py_DECREF(values);
    return made;
}

static PyMethodDef gpu_program_methods[] = {
    {"run", gpu_program_run, METH_O,
     "run(inputs) -> outputs, or all values; None, and nothing done, where an input does not "
     "lie as it was described. The list of inputs is emptied."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gpu_program_slots[] = {
    {Py_tp_new, (void *)gpu_program_new},
    {Py_tp_dealloc, (void *)gpu_program_dealloc},
    {Py_tp_methods, gpu_program_methods},
    {Py_tp_doc, "GpuProgram(launch, device, values, inputs, steps, outputs, tensor, "
                "empty, align, fail): a segment on a GPU"},
    {0, NULL},
};

PyType_Spec gpu_program_spec = {
    .name = "dovetail._native.GpuProgram",
    .basicsize = sizeof(GpuProgram),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = gpu_program_slots,
};
