/* dovetail._native: the runtime as a Python extension, on the stable ABI (3.11). */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dovetail.h"

#include <string.h>

typedef struct {
    PyObject_HEAD dvt_size_instruction *code;
    Py_ssize_t count;
    Py_ssize_t symbols;
    Py_ssize_t outputs;
    int64_t *scratch; /* symbols, then outputs; guarded by the interpreter lock */
} SizeProgram;

static PyObject *size_program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "symbols", "outputs", NULL};
    const char *data;
    Py_ssize_t bytes, symbols, outputs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#nn", names, &data, &bytes, &symbols,
                                     &outputs))
        return NULL;
    if (bytes % (Py_ssize_t)sizeof(dvt_size_instruction) || symbols < 0 || outputs < 0 ||
        symbols > PY_SSIZE_T_MAX / 32 || outputs > PY_SSIZE_T_MAX / 32) {
        PyErr_SetString(PyExc_ValueError, dvt_status_text(DVT_ERROR_MALFORMED));
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SizeProgram *self = (SizeProgram *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->count = bytes / (Py_ssize_t)sizeof(dvt_size_instruction);
    self->symbols = symbols;
    self->outputs = outputs;
    self->code = PyMem_Malloc(bytes > 0 ? (size_t)bytes : 1);
    self->scratch = PyMem_Malloc((size_t)(symbols + outputs + 1) * sizeof(int64_t));
    if (self->code == NULL || self->scratch == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->code, data, (size_t)bytes);
    if (dvt_size_verify(self->code, (size_t)self->count, (size_t)symbols, (size_t)outputs) !=
        DVT_OK) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, dvt_status_text(DVT_ERROR_MALFORMED));
        return NULL;
    }
    return (PyObject *)self;
}

static void size_program_dealloc(PyObject *object)
{
    SizeProgram *self = (SizeProgram *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(self->code);
    PyMem_Free(self->scratch);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Reads the symbols' values into the scratch space; 0 on success. */
static int read_symbols(SizeProgram *self, PyObject *values)
{
    Py_ssize_t given = PySequence_Size(values);
    if (given < 0)
        return -1;
    if (given != self->symbols) {
        PyErr_Format(PyExc_ValueError, "the size program takes %zd symbols, not %zd",
                     self->symbols, given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        PyObject *item = PySequence_GetItem(values, i);
        if (item == NULL)
            return -1;
        long long value = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (value == -1 && PyErr_Occurred())
            return -1;
        self->scratch[i] = value;
    }
    return 0;
}

static PyObject *size_program_run(PyObject *object, PyObject *values)
{
    SizeProgram *self = (SizeProgram *)object;
    if (read_symbols(self, values) != 0)
        return NULL;
    int64_t *outputs = self->scratch + self->symbols;
    dvt_status status = dvt_size_run(self->code, (size_t)self->count, self->scratch, outputs);
    if (status != DVT_OK) {
        PyErr_SetString(PyExc_ArithmeticError, dvt_status_text(status));
        return NULL;
    }
    PyObject *result = PyTuple_New(self->outputs);
    for (Py_ssize_t i = 0; result != NULL && i < self->outputs; i++) {
        PyObject *item = PyLong_FromLongLong(outputs[i]);
        if (item == NULL || PyTuple_SetItem(result, i, item) != 0)
            Py_CLEAR(result);
    }
    return result;
}

static PyMethodDef size_program_methods[] = {
    {"run", size_program_run, METH_O, "run(symbols) -> tuple of sizes"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot size_program_slots[] = {
    {Py_tp_new, (void *)size_program_new},
    {Py_tp_dealloc, (void *)size_program_dealloc},
    {Py_tp_methods, size_program_methods},
    {Py_tp_doc, "SizeProgram(code, symbols, outputs): a verified size program"},
    {0, NULL},
};

static PyType_Spec size_program_spec = {
    .name = "dovetail._native.SizeProgram",
    .basicsize = sizeof(SizeProgram),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = size_program_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&size_program_spec);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "SizeProgram", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dovetail._native",
    .m_doc = "The C runtime of dovetail.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
