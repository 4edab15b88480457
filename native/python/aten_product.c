/* Matrix products through libtorch: into memory that exists, or, where that is faster, by
 * oneDNN into memory of its own. */
#include "aten_internal.h"
#include "processor.h"

/* The sizes of products that oneDNN gets, which schedule/cpu/library.py knows too: so many
 * multiplications at least (more where it has to copy an operand), in sums of at most so many.
 */
#define LARGE       (1 << 23)
#define LARGE_MOVED (1 << 28)
#define LONGEST_SUM 1024

/* MKL, which PyTorch's products go to, uses vectors of 512 bits on Intel's processors only;
 * oneDNN uses them wherever there are any. */
bool aten_prefers_onednn(void)
{
#ifdef __x86_64__
    return dvt_processor_level() >= 4 && !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* The memory that a product is written to: the output's own, or new. */
static tensor_handle target(const dvt_host_operation *o, kept_handles *k, bool *is_new)
{
    const dvt_tensor *t = o->outputs[0];
    tensor_handle made = NULL;
    *is_new = (o->into & 1u) == 0;
    if (!*is_new)
        return aten_slot(k, o->input_count, t);
    return torch.empty(t->ndim, t->shape, t->strides, k->slots[o->input_count].dtype,
                       torch.device, 0, &made) == 0
               ? made
               : NULL;
}

static bool is_float32_matrix(const dvt_tensor *t)
{
    return t->ndim == 2 && t->dtype.code == DVT_FLOAT && t->dtype.bits == 32;
}

static bool has_rows(const dvt_tensor *t)
{
    return t->strides[1] == 1 && t->strides[0] >= t->shape[1];
}

static bool has_columns(const dvt_tensor *t)
{
    return t->strides[0] == 1 && t->strides[1] >= t->shape[0];
}

/* Whether oneDNN is to compute left @ right: below these sizes what a call of it costs is more
 * than what it wins, and it copies a left operand that lies by columns. It adds up one product
 * after the other, so that long sums would be less accurate than MKL's, which adds up parts. */
static bool suits_onednn(const dvt_tensor *left, const dvt_tensor *right, const dvt_tensor *out)
{
    if (torch.linear == NULL || !aten_prefers_onednn() || !is_float32_matrix(left) ||
        !is_float32_matrix(right) || !is_float32_matrix(out) || !has_rows(out) ||
        !(has_rows(right) || has_columns(right)) || left->shape[1] > LONGEST_SUM)
        return false;
    double work = (double)out->shape[0] * (double)out->shape[1] * (double)left->shape[1];
    return has_rows(left) ? work >= LARGE : has_columns(left) && work >= LARGE_MOVED;
}

/* Whether addmm(bias, left, right, beta, alpha) adds one row to each of a product's. */
static bool adds_a_row(const arg *a, const dvt_tensor *bias, const dvt_tensor *out)
{
    return aten_real(&a[3]) == 1.0 && aten_real(&a[4]) == 1.0 && bias->ndim == 1 &&
           bias->shape[0] == out->shape[1] && (bias->strides[0] == 1 || bias->shape[0] == 1);
}

/* True: done. False: nothing was done. */
static bool run_onednn(const arg *a, bool three, const dvt_host_operation *o, kept_handles *k,
                       const tensor_handle *operands)
{
    uint32_t first = three ? 1 : 0;
    const dvt_tensor *right = o->inputs[a[first + 1].word], *out = o->outputs[0];
    if (!suits_onednn(o->inputs[a[first].word], right, out) ||
        (three && !adds_a_row(a, o->inputs[a[0].word], out)))
        return false;
    int64_t sizes[] = {right->shape[1], right->shape[0]};
    int64_t strides[] = {right->strides[1], right->strides[0]};
    dvt_tensor weight = *right;
    weight.shape = sizes;
    weight.strides = strides;
    uint32_t own = k->count - 1;
    k->slots[own].dtype = k->slots[a[first + 1].word].dtype;
    tensor_handle transposed = aten_slot(k, own, &weight), bias = operands[0], made = NULL;
    const char *algorithm = "";
    return transposed != NULL &&
           torch.linear(operands[first], transposed, three ? &bias : NULL, "none", NULL, 0,
                        &algorithm, &made) == 0 &&
           aten_accept(o, k, 0, made);
}

/* Whether left @ right has the shape that was promised: libtorch would make an output of
 * another shape fit, as far as its memory goes, and leave the rest of it unwritten; oneDNN does
 * not look. */
static bool is_product(const dvt_tensor *left, const dvt_tensor *right, const dvt_tensor *out,
                       bool batch)
{
    int32_t rank = batch ? 3 : 2, row = rank - 2, column = rank - 1;
    if (left->ndim != rank || right->ndim != rank || out->ndim != rank)
        return false;
    if (batch && (left->shape[0] != right->shape[0] || left->shape[0] != out->shape[0]))
        return false;
    return left->shape[column] == right->shape[row] && left->shape[row] == out->shape[row] &&
           right->shape[column] == out->shape[column];
}

bool aten_run_product(const aten_plan *plan, const dvt_host_operation *o, kept_handles *k)
{
    const arg *a = plan->arguments.items;
    tensor_handle operands[3];
    bool three = plan->arguments.count == 5, batch = plan->op[6] == 'b', is_new;
    for (uint32_t i = 0; i < (three ? 3u : 2u); i++)
        if (a[i].kind != ARG_TENSOR || (operands[i] = aten_input(k, o, a[i].word)) == NULL)
            return false;
    if (o->outputs[0] == NULL)
        return true;
    const dvt_tensor *left = o->inputs[a[three ? 1 : 0].word],
                     *right = o->inputs[a[three ? 2 : 1].word];
    if (!is_product(left, right, o->outputs[0], batch))
        return false; /* Python says what is wrong */
    if ((o->into & 1u) == 0 && !batch && run_onednn(a, three, o, k, operands))
        return true;
    tensor_handle out = target(o, k, &is_new);
    if (out == NULL)
        return false;
    torch_status failed;
    if (three)
        failed = (batch ? torch.baddbmm : torch.addmm)(
            out, operands[0], operands[1], operands[2], aten_real(&a[3]), aten_real(&a[4]));
    else
        failed = (batch ? torch.bmm : torch.mm)(out, operands[0], operands[1]);
    if (!is_new)
        return failed == 0;
    if (failed == 0)
        return aten_accept(o, k, 0, out);
    torch.drop(out);
    return false;
}
