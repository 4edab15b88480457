/* plan_memory: the runtime's placement of temporaries in one arena, for whoever else places
 * memory. */
#include "bindings.h"
#include "internal.h"

static int read_lifetime(PyObject *item, lifetime *life)
{
    long long size;
    Py_ssize_t first, last;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a lifetime is a tuple (size, first, last)");
        return -1;
    }
    /* These formats raise where a number does not fit; those of unsigned numbers wrap. */
    if (!PyArg_ParseTuple(item, "Lnn", &size, &first, &last))
        return -1;
    if (size < 0 || first < 0 || first > last || last >= (Py_ssize_t)UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a negative size, or a lifetime that ends too early");
        return -1;
    }
    *life = (lifetime){(uint64_t)size, (uint32_t)first, (uint32_t)last, 0};
    return 0;
}

static PyObject *as_tuple(const lifetime *lives, Py_ssize_t count, const dvt_memory *memory)
{
    PyObject *offsets = PyTuple_New(count);
    for (Py_ssize_t i = 0; offsets != NULL && i < count; i++) {
        PyObject *offset = PyLong_FromUnsignedLongLong(lives[i].offset);
        if (offset == NULL || PyTuple_SetItem(offsets, i, offset) != 0)
            Py_CLEAR(offsets);
    }
    if (offsets == NULL)
        return NULL;
    return Py_BuildValue("(NKKK)", offsets, (unsigned long long)memory->peak,
                         (unsigned long long)memory->total, (unsigned long long)memory->bound);
}

PyObject *plan_memory(PyObject *module, PyObject *lifetimes)
{
    (void)module;
    if (!PyList_Check(lifetimes)) {
        PyErr_SetString(PyExc_TypeError, "lifetimes are a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(lifetimes);
    lifetime *lives = PyMem_Calloc((size_t)count + 1, sizeof *lives);
    if (lives == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    Py_ssize_t read = 0;
    while (read < count && read_lifetime(PyList_GetItem(lifetimes, read), &lives[read]) == 0)
        read++;
    if (read == count) {
        dvt_memory memory;
        dvt_error error;
        bool planned = dvt_plan(lives, (size_t)count, &memory, &error) == DVT_OK;
        result = planned ? as_tuple(lives, count, &memory) : raise_error(&error);
    }
    PyMem_Free(lives);
    return result;
}
