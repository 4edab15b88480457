/* gpu.h: what the files behind dovetail._native.GpuProgram share. */
#ifndef DVT_GPU_H
#define DVT_GPU_H

#include "bindings.h"

#define GPU_MOST_RANK     4
#define GPU_MOST_OPERANDS 4

extern PyType_Spec gpu_program_spec;

/* A value, or a window on it. */
typedef struct {
    Py_ssize_t place;
    int64_t offset; /* in elements */
    int32_t rank;
    int64_t sizes[GPU_MOST_RANK], strides[GPU_MOST_RANK];
} gpu_operand;

/* From (place, offset, sizes, strides), of so many dimensions at most; 0, or -1 with an
 * exception set. */
int gpu_read_operand(PyObject *object, int32_t most, gpu_operand *to);

/* What steps of one run share. */
typedef struct {
    uint64_t *words; /* each value's address, by its place */
    int32_t device;  /* -1: memory of the processor */
    void *stream;
    void **owned; /* libtorch's handles of results in its own memory, by their places */
    bool alone;   /* no other run of the program is under way, so that steps may keep things */
} gpu_run;

/* A tensor of libtorch's over memory of ours, and where that is. */
typedef struct {
    void *handle;
    uint64_t data;
} gpu_handle;

/* libtorch's numbers of a dtype and a kind of device, and the bytes of an element. */
typedef struct {
    int32_t dtype, kind, item;
} gpu_memory;

/* Handles for all operands: those that are kept, unless memory has moved. */
bool gpu_find_handles(const gpu_operand *operands, uint32_t count, const gpu_memory *memory,
                      const gpu_run *run, gpu_handle *kept);
void gpu_drop_handles(gpu_handle *kept); /* GPU_MOST_OPERANDS of them */

/* ---- matrix products into memory that exists ---- */

typedef struct gpu_product gpu_product;

/* From (name, dtype, bytes of an element, whether on a GPU, operands, beta, alpha, cuBLASLt's
 * plan or None); an operand is (place, offset, sizes, strides), the result's first. NULL with
 * an exception set. */
gpu_product *gpu_product_new(PyObject *description);
void gpu_product_free(gpu_product *product);
bool gpu_product_within(const gpu_product *product, Py_ssize_t values);
/* Needs no Python. False: nothing was done. */
bool gpu_product_run(gpu_product *product, const gpu_run *run);
/* gpu_products(on a GPU) -> names of the products that this process's PyTorch offers */
PyObject *gpu_products(PyObject *module, PyObject *unused);

/* ---- attention ---- */

typedef struct gpu_attention gpu_attention;

/* From (libtorch's function, which attention it is, dtype, bytes of an element, whether
 * on a GPU, operands, result, whether it is causal, scale or None). NULL with an exception set.
 */
gpu_attention *gpu_attention_new(PyObject *description);
void gpu_attention_free(gpu_attention *attention);
bool gpu_attention_within(const gpu_attention *attention, Py_ssize_t values);
/* Needs no Python. False: nothing was done, or not as described. */
bool gpu_attention_run(gpu_attention *attention, const gpu_run *run);
/* Gives back what is held at a place. */
void gpu_drop(const gpu_run *run, Py_ssize_t place);

/* ---- cuBLASLt ---- */

typedef struct gpu_matmul gpu_matmul;

/* From (who owns the descriptors, the library's product, its setter of attributes, its handle,
 * descriptor, four layouts, algorithm, place of its workspace, bytes of that, beta, alpha,
 * operands, which operand is the bias); the operands of A, B, C and D as numbers of the
 * product's. NULL with an exception set.
 */
gpu_matmul *gpu_matmul_new(PyObject *description);
void gpu_matmul_free(gpu_matmul *matmul);
bool gpu_matmul_within(const gpu_matmul *matmul, Py_ssize_t values, uint32_t operands);
/* False: nothing was done, since an address is not what the algorithm was chosen for. */
bool gpu_matmul_run(gpu_matmul *matmul, const gpu_run *run, const gpu_operand *operands,
                    int32_t item);

#endif
