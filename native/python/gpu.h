/* gpu.h: what the files behind dovetail._native.GpuProgram share. */
#ifndef DVT_GPU_H
#define DVT_GPU_H

#include "bindings.h"

extern PyType_Spec gpu_program_spec;

/* A tensor object as DLPack sees it; 0, or -1 with an exception set. */
int gpu_tensor(PyObject *object, dvt_tensor *to);

/* A matrix product of PyTorch's into memory that exists. */
typedef struct gpu_product gpu_product;

/* From (name, dtype, bytes of an element, whether on a GPU, operands, beta, alpha, what to call
 * where libtorch refuses); an operand is (place, offset, sizes, strides), the result's first.
 * NULL with an exception set. */
gpu_product *gpu_product_new(PyObject *description);
void gpu_product_free(gpu_product *product);
bool gpu_product_within(const gpu_product *product, Py_ssize_t values);
/* 0, or -1 with an exception set. */
int gpu_product_run(gpu_product *product, PyObject *values, int32_t device);
/* gpu_products(on a GPU) -> names of the products that this process's PyTorch offers */
PyObject *gpu_products(PyObject *module, PyObject *unused);

#endif
