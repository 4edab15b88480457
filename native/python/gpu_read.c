/* Reading a GPU's program from what backends/cuda/steps.py describes. */
#include "gpu_program.h"

#include <stdlib.h>

#define MOST_ARGS 1024
#define MOST_DIMS 64

static const char *const STEP_NAMES[] = {"empty",     "launch", "call", "product",
                                         "attention", "free",   "drop"};

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

/* (what is called with the values, the places of the tensors that it makes) */
static int read_call(PyObject *tuple, gpu_step *to)
{
    PyObject *called, *places;
    if (!PyArg_ParseTuple(tuple, "OO!", &called, &PyTuple_Type, &places))
        return -1;
    to->given = Py_NewRef(called);
    Py_ssize_t count = PyTuple_Size(places);
    if ((to->results = room_for(count, sizeof *to->results)) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        to->results[to->count++] = PyLong_AsSsize_t(PyTuple_GetItem(places, i));
    return PyErr_Occurred() ? -1 : 0;
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
        return read_call(rest, to);
    case STEP_PRODUCT:
        if (!PyArg_ParseTuple(rest, "O!O!", &PyTuple_Type, &list, &PyTuple_Type, &rest) ||
            (to->product = gpu_product_new(list)) == NULL)
            return -1;
        return read_call(rest, to);
    case STEP_ATTENTION:
        if (!PyArg_ParseTuple(rest, "O!O!", &PyTuple_Type, &list, &PyTuple_Type, &rest) ||
            (to->attention = gpu_attention_new(list)) == NULL)
            return -1;
        return read_call(rest, to);
    case STEP_FREE:
    case STEP_DROP:
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

/* None, or (its place, what makes it, [(place of a value in it, offset)]) */
static int read_arena(GpuProgram *self, PyObject *arena)
{
    PyObject *given, *parts;
    self->arena = -1;
    if (arena == Py_None)
        return 0;
    if (!PyArg_ParseTuple(arena, "nO!O!", &self->arena, &PyTuple_Type, &given, &PyList_Type,
                          &parts))
        return -1;
    self->arena_given = Py_NewRef(given);
    Py_ssize_t count = PyList_Size(parts);
    if ((self->parts = room_for(count, sizeof *self->parts)) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++, self->part_count++) {
        unsigned long long offset;
        if (!PyArg_ParseTuple(PyList_GetItem(parts, i), "nK", &self->parts[i].place, &offset))
            return -1;
        self->parts[i].offset = offset;
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
    bool good = self->arena < self->values;
    for (uint32_t i = 0; i < self->part_count; i++)
        good = good && is_place(self, self->parts[i].place);
    for (uint32_t i = 0; i < self->input_count; i++)
        good = good && is_place(self, self->inputs[i].place);
    for (uint32_t i = 0; i < self->output_count; i++)
        good = good && is_place(self, self->outputs[i]);
    for (uint32_t i = 0; i < self->step_count; i++) {
        const gpu_step *s = &self->steps[i];
        if (s->kind == STEP_EMPTY || s->kind == STEP_FREE || s->kind == STEP_DROP)
            good = good && is_place(self, s->place);
        for (uint32_t n = 0; n < s->count; n++)
            good = good && (s->kind == STEP_LAUNCH
                                ? !s->arguments[n].is_value ||
                                      is_place(self, (Py_ssize_t)s->arguments[n].word)
                                : is_place(self, s->results[n]));
        if (s->kind == STEP_PRODUCT)
            good = good && gpu_product_within(s->product, self->values);
        if (s->kind == STEP_ATTENTION)
            good = good && gpu_attention_within(s->attention, self->values);
    }
    if (!good)
        PyErr_SetString(PyExc_ValueError, "a place that no value has");
    return good ? 0 : -1;
}

/* How large a frame is. */
static void count_words(GpuProgram *self)
{
    self->words = (size_t)self->values + 1;
    for (uint32_t i = 0; i < self->step_count; i++)
        if (self->steps[i].kind == STEP_LAUNCH) {
            self->pointers += self->steps[i].count + SCRATCH;
            for (uint32_t n = 0; n < self->steps[i].count; n++)
                self->words += self->steps[i].arguments[n].is_value ? 0 : 1;
        }
}

bool gpu_frame_make(const GpuProgram *self, gpu_frame *frame)
{
    uint64_t *words = calloc(self->words, sizeof *words), *zero, *number;
    void **at = calloc(self->pointers + 1, sizeof *at);
    void **owned = calloc((size_t)self->values + 1, sizeof *owned);
    *frame = (gpu_frame){words, at, owned, false};
    if (words == NULL || at == NULL || owned == NULL) {
        gpu_frame_free(frame);
        return false;
    }
    zero = &words[self->words - 1];
    number = &words[self->values];
    for (uint32_t i = 0; i < self->step_count; i++) {
        const gpu_step *s = &self->steps[i];
        if (s->kind != STEP_LAUNCH)
            continue;
        for (uint32_t n = 0; n < s->count; n++)
            if (s->arguments[n].is_value) {
                *at++ = &words[s->arguments[n].word];
            } else {
                *number = s->arguments[n].word;
                *at++ = number++;
            }
        for (uint32_t n = 0; n < SCRATCH; n++)
            *at++ = zero;
    }
    return true;
}

void gpu_frame_free(gpu_frame *frame)
{
    free(frame->words);
    free(frame->arguments);
    free(frame->owned);
    *frame = (gpu_frame){NULL, NULL, NULL, false};
}

int gpu_program_read(GpuProgram *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"launch",  "device", "values", "arena", "inputs", "steps",
                            "outputs", "tensor", "empty",  "align", "fail",   NULL};
    unsigned long long launch;
    PyObject *arena, *inputs, *steps, *outputs, *tensor, *empty, *align, *fail;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KinOO!O!OO!OOO", names, &launch,
                                     &self->device, &self->values, &arena, &PyList_Type,
                                     &inputs, &PyList_Type, &steps, &outputs, &PyType_Type,
                                     &tensor, &empty, &align, &fail))
        return -1;
    void *address = (void *)(uintptr_t)launch;
    memcpy(&self->launch, &address, sizeof address);
    self->tensor = Py_NewRef(tensor);
    self->empty = Py_NewRef(empty);
    self->align = Py_NewRef(align);
    self->fail = Py_NewRef(fail);
    if (read_arena(self, arena) != 0 || read_inputs(self, inputs) != 0 ||
        read_steps(self, steps) != 0 || read_outputs(self, outputs) != 0 ||
        check_places(self) != 0)
        return -1;
    count_words(self);
    if (gpu_frame_make(self, &self->standing))
        return 0;
    PyErr_NoMemory();
    return -1;
}

void gpu_program_clear(GpuProgram *self)
{
    for (uint32_t i = 0; i < self->input_count; i++)
        free(self->inputs[i].sizes);
    for (uint32_t i = 0; i < self->step_count; i++) {
        Py_XDECREF(self->steps[i].given);
        free(self->steps[i].arguments);
        free(self->steps[i].results);
        gpu_product_free(self->steps[i].product);
        gpu_attention_free(self->steps[i].attention);
    }
    free(self->parts);
    free(self->inputs);
    free(self->steps);
    free(self->outputs);
    gpu_frame_free(&self->standing);
    Py_XDECREF(self->arena_given);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->empty);
    Py_XDECREF(self->align);
    Py_XDECREF(self->fail);
}
