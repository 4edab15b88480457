/* dovetail._native.GpuProgram: a segment on a GPU as one call.
 *
 * A program is a list of steps over a list of values, of which the first are the inputs: memory
 * is made, kernels are launched, PyTorch is called. Most values live in one piece of memory
 * that is made once for a run, at offsets that were planned. Launches and products need no
 * Python, so that they run in stretches without its lock; they need nothing of CUDA's but the
 * addresses of some functions, so that this builds everywhere.
 */
#include "gpu_program.h"

#include <stdlib.h>

#define DEVICE_CUDA 2  /* DLPack's number */
#define ALIGNED     15 /* bits of an address that are zero where accesses are 16 bytes wide */

/* ---- values ---- */

/* A tensor object as DLPack sees it; 0, or -1 with an exception set. */
static int gpu_tensor(PyObject *object, dvt_tensor *to)
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

/* Keeps a value's address. */
static void put(gpu_frame *f, Py_ssize_t place, const dvt_tensor *t)
{
    uint64_t address = (uint64_t)(uintptr_t)t->data + t->byte_offset;
    f->words[place] = address;
    f->unaligned = f->unaligned || (address & ALIGNED) != 0;
}

/* Keeps the address of what a value is by now; 0, or -1 with an exception set. */
static int note(gpu_frame *f, PyObject *values, Py_ssize_t place)
{
    dvt_tensor tensor;
    if (gpu_tensor(PyList_GetItem(values, place), &tensor) != 0)
        return -1;
    put(f, place, &tensor);
    return 0;
}

/* 1: the inputs lie as the kernels need them, 0: not all do, -1: an error is set. */
static int fits(const GpuProgram *self, gpu_frame *f, PyObject *values)
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
        put(f, self->inputs[i].place, &tensor);
    }
    return 1;
}

/* A value is new memory. */
static int make(const GpuProgram *self, gpu_frame *f, PyObject *values, Py_ssize_t place,
                PyObject *given)
{
    PyObject *made = PyObject_Call(self->empty, given, NULL);
    return made != NULL && PyList_SetItem(values, place, made) == 0 ? note(f, values, place)
                                                                    : -1;
}

static int make_arena(const GpuProgram *self, gpu_frame *f, PyObject *values)
{
    if (self->arena < 0)
        return 0;
    if (make(self, f, values, self->arena, self->arena_given) != 0)
        return -1;
    for (uint32_t i = 0; i < self->part_count; i++)
        f->words[self->parts[i].place] = f->words[self->arena] + self->parts[i].offset;
    return 0;
}

/* ---- launches ---- */

static bool reads_unaligned(const gpu_frame *f, const gpu_step *s)
{
    for (uint32_t i = 0; f->unaligned && i < s->count; i++)
        if (s->arguments[i].is_value && (f->words[s->arguments[i].word] & ALIGNED) != 0)
            return true;
    return false;
}

/* The driver's answer. */
static int launch(const GpuProgram *self, const gpu_step *s, void **arguments, void *stream)
{
    if (s->blocks == 0)
        return 0;
    return self->launch(s->function, s->blocks, 1, 1, s->threads, 1, 1, s->shared, stream,
                        arguments, NULL);
}

static int raise_driver(const GpuProgram *self, int code)
{
    PyObject *raised = PyObject_CallFunction(self->fail, "i", code);
    Py_XDECREF(raised);
    if (raised != NULL)
        PyErr_Format(PyExc_RuntimeError, "a launch failed with code %d", code);
    return -1;
}

/* The address of an aligned copy of a value, which `kept` holds. */
static int copy_aligned(const GpuProgram *self, PyObject *object, PyObject *kept, uint64_t *to)
{
    dvt_tensor tensor;
    PyObject *copy = PyObject_CallFunctionObjArgs(self->align, object, NULL);
    int failed = copy == NULL || PyList_Append(kept, copy) != 0 || gpu_tensor(copy, &tensor);
    Py_XDECREF(copy); /* the list holds it */
    if (!failed)
        *to = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    return failed ? -1 : 0;
}

/* With copies of what accesses cannot be wide at, made now: a step before may have written to
 * it. Copies are freed in the order of the stream. */
static int launch_on_copies(const GpuProgram *self, gpu_frame *f, const gpu_step *s,
                            void **arguments, PyObject *values, void *stream)
{
    uint64_t *words = malloc((s->count + 1) * sizeof *words);
    void **places = malloc((s->count + SCRATCH) * sizeof *places);
    PyObject *kept = PyList_New(0);
    int failed = words == NULL || places == NULL || kept == NULL ? -1 : 0;
    if (failed && !PyErr_Occurred())
        PyErr_NoMemory();
    for (uint32_t i = 0; !failed && i < s->count + SCRATCH; i++) {
        places[i] = arguments[i];
        if (i >= s->count || !s->arguments[i].is_value)
            continue;
        Py_ssize_t place = (Py_ssize_t)s->arguments[i].word;
        if ((f->words[place] & ALIGNED) == 0)
            continue;
        failed = copy_aligned(self, PyList_GetItem(values, place), kept, &words[i]);
        places[i] = &words[i];
    }
    int code = failed ? 0 : launch(self, s, places, stream);
    free(words);
    free(places);
    Py_XDECREF(kept);
    return code != 0 ? raise_driver(self, code) : failed;
}

/* ---- steps ---- */

/* A function of the values, and where what it made is. */
static int call(gpu_frame *f, const gpu_step *s, PyObject *values)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(s->given, values, NULL);
    Py_XDECREF(answer);
    int failed = answer != NULL ? 0 : -1;
    for (uint32_t i = 0; !failed && i < s->count; i++)
        failed = note(f, values, s->results[i]);
    return failed;
}

typedef struct {
    GpuProgram *program;
    gpu_frame *frame;
    PyObject *values;
    gpu_run shared;
} running;

/* Every step up to the first that needs Python: its number. `code`: a driver's that failed. */
static uint32_t run_alone(running *r, uint32_t i, void ***arguments, int *code)
{
    const GpuProgram *self = r->program;
    for (; i < self->step_count; i++) {
        const gpu_step *s = &self->steps[i];
        bool done = true;
        switch (s->kind) {
        case STEP_LAUNCH:
            done = !reads_unaligned(r->frame, s) &&
                   (*code = launch(self, s, *arguments, r->shared.stream)) == 0;
            *arguments += done ? s->count + SCRATCH : 0;
            break;
        case STEP_PRODUCT:
            done = gpu_product_run(s->product, &r->shared);
            break;
        case STEP_ATTENTION:
            done = gpu_attention_run(s->attention, &r->shared);
            break;
        case STEP_DROP:
            gpu_drop(&r->shared, s->place);
            break;
        default:
            done = false;
        }
        if (!done)
            return i;
    }
    return i;
}

static int run_step(running *r, const gpu_step *s, void ***arguments)
{
    const GpuProgram *self = r->program;
    switch (s->kind) {
    case STEP_EMPTY:
        return make(self, r->frame, r->values, s->place, s->given);
    case STEP_LAUNCH: {
        void **own = *arguments;
        *arguments += s->count + SCRATCH;
        return launch_on_copies(self, r->frame, s, own, r->values, r->shared.stream);
    }
    case STEP_CALL:
    case STEP_PRODUCT: /* which libtorch refused: Python says why */
    case STEP_ATTENTION:
        return call(r->frame, s, r->values);
    case STEP_FREE:
        return PyList_SetItem(r->values, s->place, Py_NewRef(Py_None));
    case STEP_DROP:
        break;
    }
    return -1;
}

static bool needs_python(const gpu_step *s)
{
    return s->kind == STEP_EMPTY || s->kind == STEP_CALL || s->kind == STEP_FREE;
}

static int run_steps(running *r)
{
    GpuProgram *self = r->program;
    void **arguments = r->frame->arguments;
    for (uint32_t i = 0; i < self->step_count; i++) {
        int code = 0;
        if (!needs_python(&self->steps[i])) {
            Py_BEGIN_ALLOW_THREADS; /* a full queue makes launches wait */
            i = run_alone(r, i, &arguments, &code);
            Py_END_ALLOW_THREADS;
        }
        if (code != 0)
            return raise_driver(self, code);
        if (i < self->step_count && run_step(r, &self->steps[i], &arguments) != 0)
            return -1;
    }
    return 0;
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

/* The inputs as the first of all values, the rest None. */
static PyObject *all_values(const GpuProgram *self, PyObject *inputs)
{
    PyObject *values = PySequence_List(inputs);
    Py_ssize_t given = values != NULL ? PyList_Size(values) : 0;
    if (given > self->values) {
        PyErr_Format(PyExc_ValueError, "%zd inputs where there are %zd values", given,
                     self->values);
        Py_CLEAR(values);
    }
    for (Py_ssize_t i = given; values != NULL && i < self->values; i++)
        if (PyList_Append(values, Py_None) != 0)
            Py_CLEAR(values);
    return values;
}

/* The results; None where an input does not lie as described. */
static PyObject *run_with(running *r, PyObject *inputs)
{
    GpuProgram *self = r->program;
    r->frame->unaligned = false;
    int fit = fits(self, r->frame, r->values);
    if (fit == 0)
        return Py_NewRef(Py_None);
    if (fit < 0 || stream_of(self, &r->shared.stream) != 0 ||
        PyList_SetSlice(inputs, 0, PyList_Size(inputs), NULL) != 0 ||
        make_arena(self, r->frame, r->values) != 0 || run_steps(r) != 0)
        return NULL;
    return self->outputs != NULL ? picked(self, r->values) : Py_NewRef(r->values);
}

static PyObject *gpu_program_run(PyObject *object, PyObject *inputs)
{
    GpuProgram *self = (GpuProgram *)object;
    gpu_frame own = {NULL, NULL, NULL, false};
    bool alone = !self->busy; /* another thread may be in one of its steps */
    PyObject *values = all_values(self, inputs), *made = NULL;
    if (values == NULL)
        return NULL;
    if (!alone && !gpu_frame_make(self, &own)) {
        Py_DECREF(values);
        return PyErr_NoMemory();
    }
    running r = {.program = self, .frame = alone ? &self->standing : &own, .values = values};
    r.shared = (gpu_run){r.frame->words, self->device, NULL, r.frame->owned, alone};
    self->busy = true;
    made = run_with(&r, inputs);
    for (Py_ssize_t i = 0; i < self->values; i++)
        gpu_drop(&r.shared, i);
    if (alone)
        self->busy = false;
    else
        gpu_frame_free(&own);
    Py_DECREF(values);
    return made;
}

static PyObject *gpu_program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    GpuProgram *self = (GpuProgram *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL && gpu_program_read(self, args, kwargs) != 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void gpu_program_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    gpu_program_clear((GpuProgram *)object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
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
    {Py_tp_doc, "GpuProgram(launch, device, values, arena, inputs, steps, outputs, "
                "tensor, empty, align, fail): a segment on a GPU"},
    {0, NULL},
};

PyType_Spec gpu_program_spec = {
    .name = "dovetail._native.GpuProgram",
    .basicsize = sizeof(GpuProgram),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = gpu_program_slots,
};
