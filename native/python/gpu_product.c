/* Matrix products of PyTorch's between a GPU program's launches, through libtorch's C
 * functions: into memory that exists, with no Python and no dispatcher. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "aten_internal.h"
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_RANK     3
#define MOST_OPERANDS 4 /* the result comes first */

typedef torch_status (*two_operands)(tensor_handle, tensor_handle, tensor_handle);
typedef torch_status (*three_operands)(tensor_handle, tensor_handle, tensor_handle,
                                       tensor_handle, double, double);

/* A value, or a window on it. */
typedef struct {
    Py_ssize_t place;
    int64_t offset; /* in elements */
    int32_t rank;
    int64_t sizes[MOST_RANK], strides[MOST_RANK];
} operand;

typedef struct {
    tensor_handle handle;
    void *data;
} kept_operand;

struct gpu_product {
    void *function;
    uint32_t count;
    operand operands[MOST_OPERANDS];
    int32_t dtype;
    int32_t item; /* bytes of an element */
    double beta, alpha;
    PyObject *instead; /* called with the values where libtorch refuses, to say why */
    bool busy;         /* in another thread, which uses the handles */
    kept_operand kept[MOST_OPERANDS];
};

static const struct {
    const char *name;
    uint32_t operands;
} PRODUCTS[] = {{"mm", 3}, {"bmm", 3}, {"addmm", 4}, {"baddbmm", 4}};

/* A product's function for the memory of a device; NULL: this PyTorch has none. */
static void *function_of(const char *name, bool on_gpu)
{
    char symbol[64];
    void *library =
        dlopen(on_gpu ? "libtorch_cuda.so" : "libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    snprintf(symbol, sizeof symbol, "aoti_torch_%s_%s_out", on_gpu ? "cuda" : "cpu", name);
    void *found = library != NULL && aten_available() ? dlsym(library, symbol) : NULL;
    if (library != NULL)
        dlclose(library); /* PyTorch holds it */
    return found;
}

PyObject *gpu_products(PyObject *module, PyObject *on_gpu)
{
    (void)module;
    int wanted = PyObject_IsTrue(on_gpu);
    PyObject *names = wanted < 0 ? NULL : PyList_New(0);
    for (size_t i = 0; names != NULL && i < sizeof PRODUCTS / sizeof *PRODUCTS; i++) {
        if (function_of(PRODUCTS[i].name, wanted != 0) == NULL)
            continue;
        PyObject *name = PyUnicode_FromString(PRODUCTS[i].name);
        if (name == NULL || PyList_Append(names, name) != 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* (place, offset, sizes, strides) */
static int read_operand(PyObject *object, operand *to)
{
    PyObject *sizes, *strides;
    long long offset;
    if (!PyArg_ParseTuple(object, "nLO!O!", &to->place, &offset, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides))
        return -1;
    to->offset = offset;
    to->rank = (int32_t)PyTuple_Size(sizes);
    if (to->rank > MOST_RANK || PyTuple_Size(strides) != to->rank) {
        PyErr_SetString(PyExc_ValueError, "an operand that is no matrix");
        return -1;
    }
    for (int32_t i = 0; i < to->rank; i++) {
        to->sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        to->strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    }
    return PyErr_Occurred() ? -1 : 0;
}

gpu_product *gpu_product_new(PyObject *description)
{
    PyObject *name, *dtype, *operands, *instead;
    double beta, alpha;
    int on_gpu, item;
    if (!PyArg_ParseTuple(description, "UUipO!ddO", &name, &dtype, &item, &on_gpu,
                          &PyTuple_Type, &operands, &beta, &alpha, &instead))
        return NULL;
    gpu_product *made = calloc(1, sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    made->instead = Py_NewRef(instead);
    made->beta = beta;
    made->alpha = alpha;
    made->item = item;
    made->count = (uint32_t)PyTuple_Size(operands);
    for (size_t i = 0; i < sizeof PRODUCTS / sizeof *PRODUCTS; i++)
        if (PyUnicode_CompareWithASCIIString(name, PRODUCTS[i].name) == 0 &&
            made->count == PRODUCTS[i].operands)
            made->function = function_of(PRODUCTS[i].name, on_gpu != 0);
    PyObject *bytes = PyUnicode_AsUTF8String(dtype);
    made->dtype = bytes != NULL ? aten_constant(PyBytes_AsString(bytes)) : -1;
    Py_XDECREF(bytes);
    if (!PyErr_Occurred() && (made->function == NULL || made->dtype < 0))
        PyErr_Format(PyExc_ValueError, "no product %R of %R", name, dtype);
    for (uint32_t i = 0; !PyErr_Occurred() && i < made->count; i++)
        if (read_operand(PyTuple_GetItem(operands, i), &made->operands[i]) != 0)
            break;
    if (!PyErr_Occurred())
        return made;
    gpu_product_free(made);
    return NULL;
}

static void drop(kept_operand *kept)
{
    for (uint32_t i = 0; i < MOST_OPERANDS; i++)
        if (kept[i].handle != NULL)
            torch.drop(kept[i].handle);
}

void gpu_product_free(gpu_product *product)
{
    if (product == NULL)
        return;
    drop(product->kept);
    Py_XDECREF(product->instead);
    free(product);
}

bool gpu_product_within(const gpu_product *product, Py_ssize_t values)
{
    for (uint32_t i = 0; i < product->count; i++)
        if (product->operands[i].place < 0 || product->operands[i].place >= values)
            return false;
    return true;
}

/* Handles for all operands: those that are kept, unless memory has moved. */
static int find_handles(const gpu_product *p, PyObject *values, int32_t device,
                        kept_operand *kept)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const operand *o = &p->operands[i];
        dvt_tensor tensor;
        if (gpu_tensor(PyList_GetItem(values, o->place), &tensor) != 0)
            return -1;
        void *data = (char *)tensor.data + tensor.byte_offset + o->offset * p->item;
        if (kept[i].handle != NULL && kept[i].data == data)
            continue;
        if (kept[i].handle != NULL)
            torch.drop(kept[i].handle);
        kept[i] = (kept_operand){NULL, data};
        int32_t kind = device < 0 ? torch.device : aten_constant("device_type_cuda");
        if (torch.from_blob(data, o->rank, o->sizes, o->strides, 0, p->dtype, kind,
                            device < 0 ? 0 : device, &kept[i].handle) != 0) {
            kept[i].handle = NULL;
            PyErr_SetString(PyExc_RuntimeError, "libtorch makes no tensor of memory");
            return -1;
        }
    }
    return 0;
}

static torch_status multiply(const gpu_product *p, const kept_operand *k)
{
    if (p->count == MOST_OPERANDS) {
        three_operands function;
        memcpy(&function, &p->function, sizeof function);
        return function(k[0].handle, k[1].handle, k[2].handle, k[3].handle, p->beta, p->alpha);
    }
    two_operands function;
    memcpy(&function, &p->function, sizeof function);
    return function(k[0].handle, k[1].handle, k[2].handle);
}

int gpu_product_run(gpu_product *p, PyObject *values, int32_t device)
{
    kept_operand own[MOST_OPERANDS] = {{NULL, NULL}};
    bool shared = !p->busy;
    kept_operand *kept = shared ? p->kept : own;
    torch_status failed = 0;
    p->busy = true;
    int problem = find_handles(p, values, device, kept);
    if (problem == 0) {
        Py_BEGIN_ALLOW_THREADS;
        failed = multiply(p, kept);
        Py_END_ALLOW_THREADS;
    }
    if (shared)
        p->busy = false;
    else
        drop(own);
    if (problem != 0 || failed == 0)
        return problem;
    PyObject *answer = PyObject_CallFunctionObjArgs(p->instead, values, NULL);
    Py_XDECREF(answer);
    return answer != NULL ? 0 : -1;
}
