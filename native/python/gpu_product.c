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

#define MOST_RANK 3

typedef torch_status (*two_operands)(tensor_handle, tensor_handle, tensor_handle);
typedef torch_status (*three_operands)(tensor_handle, tensor_handle, tensor_handle,
                                       tensor_handle, double, double);

struct gpu_product {
    void *function;
    uint32_t count;
    gpu_operand operands[GPU_MOST_OPERANDS];
    int32_t dtype, kind; /* libtorch's numbers, of the device the second */
    int32_t item;        /* bytes of an element */
    double beta, alpha;
    gpu_matmul *matmul; /* NULL: libtorch does it */
    gpu_handle kept[GPU_MOST_OPERANDS];
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

int gpu_read_operand(PyObject *object, int32_t most, gpu_operand *to)
{
    PyObject *sizes, *strides;
    long long offset;
    if (!PyArg_ParseTuple(object, "nLO!O!", &to->place, &offset, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides))
        return -1;
    to->offset = offset;
    to->rank = (int32_t)PyTuple_Size(sizes);
    if (to->rank > most || PyTuple_Size(strides) != to->rank) {
        PyErr_Format(PyExc_ValueError, "an operand that has more than %d dimensions",
                     (int)most);
        return -1;
    }
    for (int32_t i = 0; i < to->rank; i++) {
        to->sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        to->strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Reads what a product is; an exception is set where it is none. */
static void read_product(PyObject *description, gpu_product *to)
{
    PyObject *name, *dtype, *operands, *matmul;
    int on_gpu;
    if (!PyArg_ParseTuple(description, "UUipO!ddO", &name, &dtype, &to->item, &on_gpu,
                          &PyTuple_Type, &operands, &to->beta, &to->alpha, &matmul))
        return;
    to->kind = on_gpu ? aten_constant("device_type_cuda") : torch.device;
    to->count = (uint32_t)PyTuple_Size(operands);
    if (to->count > GPU_MOST_OPERANDS)
        to->count = 0; /* which no product has */
    for (size_t i = 0; i < sizeof PRODUCTS / sizeof *PRODUCTS; i++)
        if (PyUnicode_CompareWithASCIIString(name, PRODUCTS[i].name) == 0 &&
            to->count == PRODUCTS[i].operands)
            to->function = function_of(PRODUCTS[i].name, on_gpu != 0);
    PyObject *bytes = PyUnicode_AsUTF8String(dtype);
    to->dtype = bytes != NULL ? aten_constant(PyBytes_AsString(bytes)) : -1;
    Py_XDECREF(bytes);
    if (!PyErr_Occurred() && (to->function == NULL || to->dtype < 0))
        PyErr_Format(PyExc_ValueError, "no product %R of %R", name, dtype);
    for (uint32_t i = 0; !PyErr_Occurred() && i < to->count; i++)
        gpu_read_operand(PyTuple_GetItem(operands, i), MOST_RANK, &to->operands[i]);
    if (!PyErr_Occurred() && matmul != Py_None)
        to->matmul = gpu_matmul_new(matmul);
}

gpu_product *gpu_product_new(PyObject *description)
{
    gpu_product *made = calloc(1, sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    read_product(description, made);
    if (!PyErr_Occurred())
        return made;
    gpu_product_free(made);
    return NULL;
}

void gpu_drop_handles(gpu_handle *kept)
{
    for (uint32_t i = 0; i < GPU_MOST_OPERANDS; i++)
        if (kept[i].handle != NULL)
            torch.drop(kept[i].handle);
}

void gpu_product_free(gpu_product *product)
{
    if (product == NULL)
        return;
    gpu_drop_handles(product->kept);
    gpu_matmul_free(product->matmul);
    free(product);
}

bool gpu_product_within(const gpu_product *product, Py_ssize_t values)
{
    for (uint32_t i = 0; i < product->count; i++)
        if (product->operands[i].place < 0 || product->operands[i].place >= values)
            return false;
    return product->matmul == NULL ||
           gpu_matmul_within(product->matmul, values, product->count);
}

bool gpu_find_handles(const gpu_operand *operands, uint32_t count, const gpu_memory *memory,
                      const gpu_run *run, gpu_handle *kept)
{
    int32_t device = run->device < 0 ? 0 : run->device;
    for (uint32_t i = 0; i < count; i++) {
        const gpu_operand *o = &operands[i];
        uint64_t data = run->words[o->place] + (uint64_t)(o->offset * memory->item);
        if (kept[i].handle != NULL && kept[i].data == data)
            continue;
        if (kept[i].handle != NULL)
            torch.drop(kept[i].handle);
        kept[i] = (gpu_handle){NULL, data};
        tensor_handle made;
        if (torch.from_blob((void *)(uintptr_t)data, o->rank, o->sizes, o->strides, 0,
                            memory->dtype, memory->kind, device, &made) != 0)
            return false;
        kept[i].handle = made;
    }
    return true;
}

static torch_status multiply(const gpu_product *p, const gpu_handle *k)
{
    if (p->count == GPU_MOST_OPERANDS) {
        three_operands function;
        memcpy(&function, &p->function, sizeof function);
        return function(k[0].handle, k[1].handle, k[2].handle, k[3].handle, p->beta, p->alpha);
    }
    two_operands function;
    memcpy(&function, &p->function, sizeof function);
    return function(k[0].handle, k[1].handle, k[2].handle);
}

bool gpu_product_run(gpu_product *p, const gpu_run *run)
{
    if (p->matmul != NULL && gpu_matmul_run(p->matmul, run, p->operands, p->item))
        return true;
    gpu_handle own[GPU_MOST_OPERANDS] = {{NULL, 0}};
    gpu_handle *kept = run->alone ? p->kept : own;
    gpu_memory memory = {p->dtype, p->kind, p->item};
    bool done =
        gpu_find_handles(p->operands, p->count, &memory, run, kept) && multiply(p, kept) == 0;
    if (!run->alone)
        gpu_drop_handles(own);
    return done;
}
