/* Attention by PyTorch's fused kernels between a GPU program's launches, through libtorch's C
 * functions: with no Python, and no dispatcher. Memory of the result is libtorch's, held by a
 * handle until its last use. */
#include "aten_internal.h"
#include "gpu.h"

#include <stdlib.h>

#define RESULTS 7 /* of attention that are tensors, at most */
#define ALIGNED 15

typedef torch_status (*flash_function)(tensor_handle query, tensor_handle key,
                                       tensor_handle value, double dropout, int32_t causal,
                                       int32_t debug, double *scale, tensor_handle *out,
                                       tensor_handle *sums, tensor_handle *queries,
                                       tensor_handle *keys, int64_t *longest_query,
                                       int64_t *longest_key, tensor_handle *state,
                                       tensor_handle *unused, tensor_handle *mask);
typedef torch_status (*efficient_function)(tensor_handle query, tensor_handle key,
                                           tensor_handle value, tensor_handle *bias,
                                           int32_t with_sums, double dropout, int32_t causal,
                                           double *scale, tensor_handle *out,
                                           tensor_handle *sums, tensor_handle *seed,
                                           tensor_handle *offset);

typedef torch_status (*cudnn_function)(tensor_handle query, tensor_handle key,
                                       tensor_handle value, tensor_handle *bias,
                                       int32_t with_sums, double dropout, int32_t causal,
                                       int32_t debug, double *scale, tensor_handle *out,
                                       tensor_handle *sums, tensor_handle *queries,
                                       tensor_handle *keys, int64_t *longest_query,
                                       int64_t *longest_key, tensor_handle *seed,
                                       tensor_handle *offset, tensor_handle *mask);

typedef enum { FLASH, EFFICIENT, CUDNN, KINDS } attention_kind;
static const char *const KIND_NAMES[] = {"flash", "efficient", "cudnn"};

struct gpu_attention {
    attention_kind how;
    bool refused;
    void *function;
    uint32_t count;
    gpu_operand operands[GPU_MOST_OPERANDS]; /* the query, the keys, the values, a bias */
    gpu_operand result;
    int32_t dtype, kind, item, causal;
    bool scaled;
    double scale;
    gpu_handle kept[GPU_MOST_OPERANDS];
};

static void read_attention(PyObject *description, gpu_attention *to)
{
    PyObject *name, *dtype, *operands, *result, *scale;
    unsigned long long function;
    int on_gpu, how = 0;
    if (!PyArg_ParseTuple(description, "KUUipO!O!iO", &function, &name, &dtype, &to->item,
                          &on_gpu, &PyTuple_Type, &operands, &PyTuple_Type, &result,
                          &to->causal, &scale))
        return;
    to->function = (void *)(uintptr_t)function;
    while (how < KINDS && PyUnicode_CompareWithASCIIString(name, KIND_NAMES[how]) != 0)
        how++;
    to->how = (attention_kind)how;
    to->scaled = scale != Py_None;
    to->scale = to->scaled ? PyFloat_AsDouble(scale) : 0;
    PyObject *bytes = PyUnicode_AsUTF8String(dtype);
    bool known = bytes != NULL && aten_available();
    to->dtype = known ? aten_constant(PyBytes_AsString(bytes)) : -1;
    to->kind = known && on_gpu ? aten_constant("device_type_cuda") : torch.device;
    Py_XDECREF(bytes);
    to->count = (uint32_t)PyTuple_Size(operands);
    if (!PyErr_Occurred() && (to->dtype < 0 || to->count < 3 || to->count > 4 || how == KINDS ||
                              (how == FLASH && to->count != 3)))
        PyErr_Format(PyExc_ValueError, "no attention %R of %u operands of %R", name, to->count,
                     dtype);
    for (uint32_t i = 0; !PyErr_Occurred() && i < to->count; i++)
        gpu_read_operand(PyTuple_GetItem(operands, i), GPU_MOST_RANK, &to->operands[i]);
    if (!PyErr_Occurred())
        gpu_read_operand(result, GPU_MOST_RANK, &to->result);
}

gpu_attention *gpu_attention_new(PyObject *description)
{
    gpu_attention *made = calloc(1, sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    read_attention(description, made);
    if (!PyErr_Occurred())
        return made;
    gpu_attention_free(made);
    return NULL;
}

void gpu_attention_free(gpu_attention *attention)
{
    if (attention != NULL)
        gpu_drop_handles(attention->kept);
    free(attention);
}

bool gpu_attention_within(const gpu_attention *a, Py_ssize_t values)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (a->operands[i].place < 0 || a->operands[i].place >= values)
            return false;
    return a->result.place >= 0 && a->result.place < values;
}

/* The result alone, NULL where libtorch refuses. */
static tensor_handle attend(const gpu_attention *a, const gpu_handle *k)
{
    tensor_handle made[RESULTS] = {NULL};
    int64_t longest[2];
    tensor_handle bias = k[3].handle, *biased = a->count > 3 ? &bias : NULL;
    double factor = a->scale, *scale = a->scaled ? &factor : NULL;
    torch_status failed;
    if (a->how == FLASH) {
        flash_function function;
        memcpy(&function, &a->function, sizeof function);
        failed = function(k[0].handle, k[1].handle, k[2].handle, 0.0, a->causal, 0, scale,
                          &made[0], &made[1], &made[2], &made[3], &longest[0], &longest[1],
                          &made[4], &made[5], &made[6]);
    } else if (a->how == EFFICIENT) {
        efficient_function function;
        memcpy(&function, &a->function, sizeof function);
        failed = function(k[0].handle, k[1].handle, k[2].handle, biased, 0, 0.0, a->causal,
                          scale, &made[0], &made[1], &made[2], &made[3]);
    } else {
        cudnn_function function;
        memcpy(&function, &a->function, sizeof function);
        failed = function(k[0].handle, k[1].handle, k[2].handle, biased, 0, 0.0, a->causal, 0,
                          scale, &made[0], &made[1], &made[2], &made[3], &longest[0],
                          &longest[1], &made[4], &made[5], &made[6]);
    }
    for (size_t i = failed != 0 ? 0 : 1; i < RESULTS; i++)
        if (made[i] != NULL)
            torch.drop(made[i]);
    return failed != 0 ? NULL : made[0];
}

/* Whether a result lies as kernels were told. */
static bool lies_as(tensor_handle made, const gpu_attention *a, void **data)
{
    int64_t rank, *sizes, *strides;
    int32_t dtype;
    if (torch.dtype(made, &dtype) != 0 || dtype != a->dtype || torch.rank(made, &rank) != 0 ||
        rank != a->result.rank || torch.sizes(made, &sizes) != 0 ||
        torch.strides(made, &strides) != 0 || torch.data(made, data) != 0)
        return false;
    for (int32_t i = 0; i < a->result.rank; i++)
        if (sizes[i] != a->result.sizes[i] ||
            (sizes[i] != 1 && strides[i] != a->result.strides[i]))
            return false;
    return ((uintptr_t)*data & ALIGNED) == 0;
}

bool gpu_attention_run(gpu_attention *a, const gpu_run *run)
{
    gpu_handle own[GPU_MOST_OPERANDS] = {{NULL, 0}};
    gpu_handle *kept = run->alone ? a->kept : own;
    gpu_memory memory = {a->dtype, a->kind, a->item};
    tensor_handle made = NULL;
    void *data = NULL;
    if (a->refused)
        return false;
    if (gpu_find_handles(a->operands, a->count, &memory, run, kept))
        made = attend(a, kept);
    if (!run->alone)
        gpu_drop_handles(own);
    if (made == NULL || !lies_as(made, a, &data)) {
        if (made != NULL)
            torch.drop(made);
        a->refused = true; /* it would be again */
        return false;
    }
    gpu_drop(run, a->result.place);
    run->owned[a->result.place] = made;
    run->words[a->result.place] = (uint64_t)(uintptr_t)data;
    return true;
}

void gpu_drop(const gpu_run *run, Py_ssize_t place)
{
    if (run->owned[place] != NULL)
        torch.drop(run->owned[place]);
    run->owned[place] = NULL;
}
