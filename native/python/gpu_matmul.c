/* Matrix products by cuBLASLt, in the library that PyTorch has loaded: what a product needs is
 * described and its algorithm chosen once (backends/cuda/cublas.py); a call is one of the
 * library. */
#include "gpu.h"

#include <stdlib.h>

#define ALIGNED   255 /* bits of an address that are zero where algorithms were chosen for it */
#define ALGORITHM 8   /* words that an algorithm has */
#define BIAS      8   /* CUBLASLT_MATMUL_DESC_BIAS_POINTER */

typedef int (*matmul_function)(void *handle, void *descriptor, const void *alpha, const void *a,
                               void *a_layout, const void *b, void *b_layout, const void *beta,
                               const void *c, void *c_layout, void *d, void *d_layout,
                               const void *algorithm, void *workspace, size_t bytes,
                               void *stream);
typedef int (*set_function)(void *descriptor, int attribute, const void *value, size_t bytes);

enum { A, B, C, D, MATRICES };

struct gpu_matmul {
    matmul_function function;
    set_function set;
    void *handle, *descriptor, *layouts[MATRICES];
    uint64_t algorithm[ALGORITHM];
    Py_ssize_t workspace; /* a place; -1: none */
    size_t bytes;
    float beta, alpha;
    unsigned operands[MATRICES];
    int bias;           /* an operand; -1: none */
    uint64_t bias_data; /* what the descriptor says of it now */
    PyObject *owner;    /* of the descriptors */
};

static void set_address(void *function, unsigned long long address)
{
    void *value = (void *)(uintptr_t)address;
    memcpy(function, &value, sizeof value);
}

static int read_algorithm(PyObject *bytes, gpu_matmul *to)
{
    if (!PyBytes_Check(bytes) || PyBytes_Size(bytes) != sizeof to->algorithm) {
        PyErr_SetString(PyExc_ValueError, "no algorithm of cuBLASLt's");
        return -1;
    }
    memcpy(to->algorithm, PyBytes_AsString(bytes), sizeof to->algorithm);
    return 0;
}

gpu_matmul *gpu_matmul_new(PyObject *description)
{
    unsigned long long function, set, handle, descriptor, layouts[MATRICES], bytes;
    PyObject *owner, *algorithm;
    gpu_matmul read = {.bias_data = 0};
    unsigned *operands = read.operands;
    if (!PyArg_ParseTuple(description, "OKKKK(KKKK)OnKff(IIII)i", &owner, &function, &set,
                          &handle, &descriptor, &layouts[A], &layouts[B], &layouts[C],
                          &layouts[D], &algorithm, &read.workspace, &bytes, &read.beta,
                          &read.alpha, &operands[A], &operands[B], &operands[C], &operands[D],
                          &read.bias) ||
        read_algorithm(algorithm, &read) != 0)
        return NULL;
    set_address(&read.function, function);
    set_address(&read.set, set);
    set_address(&read.handle, handle);
    set_address(&read.descriptor, descriptor);
    for (int i = 0; i < MATRICES; i++)
        set_address(&read.layouts[i], layouts[i]);
    read.bytes = (size_t)bytes;
    gpu_matmul *made = malloc(sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *made = read;
    made->owner = Py_NewRef(owner);
    return made;
}

void gpu_matmul_free(gpu_matmul *matmul)
{
    if (matmul != NULL)
        Py_DECREF(matmul->owner);
    free(matmul);
}

bool gpu_matmul_within(const gpu_matmul *m, Py_ssize_t values, uint32_t operands)
{
    for (int i = 0; i < MATRICES; i++)
        if (m->operands[i] >= operands)
            return false;
    return m->workspace < values && m->bias < (int)operands &&
           (m->workspace >= 0 || m->bytes == 0);
}

/* The descriptor names the bias: said again where that has moved, which only a run that is
 * alone may do. */
static bool names_bias(gpu_matmul *m, uint64_t data, bool alone)
{
    if (m->bias_data == data)
        return true;
    if (!alone || m->set(m->descriptor, BIAS, &data, sizeof data) != 0)
        return false;
    m->bias_data = data;
    return true;
}

/* Where an operand is; false: not where the algorithm may find it. */
static bool find(const gpu_run *run, const gpu_operand *o, int32_t item, uint64_t *address)
{
    *address = run->words[o->place] + (uint64_t)(o->offset * item);
    return (*address & ALIGNED) == 0;
}

bool gpu_matmul_run(gpu_matmul *m, const gpu_run *run, const gpu_operand *operands,
                    int32_t item)
{
    void *at[MATRICES];
    uint64_t address;
    for (int i = 0; i < MATRICES; i++) {
        if (!find(run, &operands[m->operands[i]], item, &address))
            return false;
        set_address(&at[i], address);
    }
    if (m->bias >= 0 &&
        !(find(run, &operands[m->bias], item, &address) && names_bias(m, address, run->alone)))
        return false;
    void *workspace = m->workspace >= 0 ? (void *)(uintptr_t)run->words[m->workspace] : NULL;
    return m->function(m->handle, m->descriptor, &m->alpha, at[A], m->layouts[A], at[B],
                       m->layouts[B], &m->beta, at[C], m->layouts[C], at[D], m->layouts[D],
                       m->algorithm, workspace, m->bytes, run->stream) == 0;
}
