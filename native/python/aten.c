/* Host operations through libtorch's C functions.
 *
 * A call goes either to a function of its own (matrix products into memory that exists,
 * convolutions) or through the dispatcher, with its arguments as 64-bit words on a stack. What
 * libtorch lacks or cannot take sends a call through Python.
 */
#include "aten_internal.h"

#include <stdlib.h>

/* ---- tensors ---- */

void aten_free_kept(void *kept)
{
    kept_handles *k = kept;
    for (uint32_t i = 0; i < k->count; i++)
        if (k->slots[i].handle != NULL)
            torch.drop(k->slots[i].handle);
    free(k);
}

static kept_handles *new_kept(const dvt_host_operation *o)
{
    uint32_t count = o->input_count + o->output_count + 1;
    kept_handles *k = calloc(1, sizeof *k + count * sizeof *k->slots);
    if (k == NULL)
        return NULL;
    k->count = count;
    k->usable = k->floating = true;
    for (uint32_t i = 0; i + 1 < count; i++) {
        const dvt_tensor *t =
            i < o->input_count ? o->inputs[i] : o->outputs[i - o->input_count];
        if (t == NULL)
            continue;
        k->slots[i].dtype = aten_dtype(t->dtype);
        k->usable = k->usable && k->slots[i].dtype >= 0;
        k->floating =
            k->floating && (t->dtype.code == DVT_FLOAT || t->dtype.code == DVT_BFLOAT);
    }
    return k;
}

static char *start_of(const dvt_tensor *t)
{
    return (char *)t->data + t->byte_offset;
}

tensor_handle aten_slot(kept_handles *k, uint32_t slot, const dvt_tensor *t)
{
    void *data = start_of(t);
    if (k->slots[slot].handle != NULL && k->slots[slot].data == data)
        return k->slots[slot].handle;
    if (k->slots[slot].handle != NULL)
        torch.drop(k->slots[slot].handle);
    k->slots[slot].handle = NULL;
    k->slots[slot].data = data;
    if (torch.from_blob(data, t->ndim, t->shape, t->strides, 0, k->slots[slot].dtype,
                        torch.device, 0, &k->slots[slot].handle) != 0)
        k->slots[slot].handle = NULL;
    return k->slots[slot].handle;
}

/* A result of libtorch's, as the runtime holds it. */
typedef struct {
    dvt_managed managed;
    tensor_handle handle;
    void *storage; /* where its memory starts, to tell whether two share it */
} result;

static void delete_result(dvt_managed *self)
{
    result *r = self->manager_ctx;
    torch.drop(r->handle);
    free(r);
}

static const result *result_of(const dvt_host_operation *o, uint32_t input)
{
    const dvt_managed *held = o->held[o->buffers[input]];
    return held != NULL && held->deleter == delete_result ? held->manager_ctx : NULL;
}

tensor_handle aten_input(kept_handles *k, const dvt_host_operation *o, uint64_t input)
{
    if (input >= o->input_count)
        return NULL;
    const result *r = result_of(o, (uint32_t)input);
    return r != NULL ? r->handle : aten_slot(k, (uint32_t)input, o->inputs[input]);
}

/* ---- results ---- */

static bool is_empty(const dvt_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    return false;
}

static bool lies_as(const dvt_tensor *expected, const int64_t *sizes, const int64_t *strides)
{
    for (int32_t i = 0; i < expected->ndim; i++)
        if (sizes[i] != 1 && strides[i] != expected->strides[i])
            return is_empty(expected);
    return true;
}

/* Replaces a handle by one of the expected layout; false: it cannot be. */
static bool lay_out(const dvt_tensor *expected, int32_t dtype, tensor_handle *handle)
{
    tensor_handle made = NULL;
    if (torch.empty(expected->ndim, expected->shape, expected->strides, dtype, torch.device, 0,
                    &made) != 0)
        return false;
    bool copied = torch.copy(made, *handle, 0) == 0;
    torch.drop(copied ? *handle : made);
    if (copied)
        *handle = made;
    return copied;
}

static void *storage_of(tensor_handle handle, uint32_t item)
{
    void *data = NULL;
    int64_t offset = 0;
    if (torch.data(handle, &data) != 0 || torch.offset(handle, &offset) != 0 || data == NULL)
        return NULL;
    return (char *)data - offset * (int64_t)item;
}

/* Whether a result lies in memory of an input or of a result before it. */
static bool is_shared(const dvt_host_operation *o, uint32_t number, const void *storage)
{
    if (storage == NULL)
        return false;
    for (uint32_t i = 0; i < o->input_count; i++) {
        const result *r = result_of(o, i);
        if ((r != NULL ? r->storage : start_of(o->inputs[i])) == storage)
            return true;
    }
    for (uint32_t i = 0; i < number; i++)
        if (o->made[i] != NULL && ((const result *)o->made[i]->manager_ctx)->storage == storage)
            return true;
    return false;
}

static bool has_shape(tensor_handle handle, const dvt_tensor *expected, int32_t dtype,
                      int64_t **sizes, int64_t **strides)
{
    int64_t rank;
    int32_t number;
    if (torch.dtype(handle, &number) != 0 || number != dtype ||
        torch.rank(handle, &rank) != 0 || rank != expected->ndim ||
        torch.sizes(handle, sizes) != 0 || torch.strides(handle, strides) != 0)
        return false;
    for (int32_t i = 0; i < expected->ndim; i++)
        if ((*sizes)[i] != expected->shape[i])
            return false;
    return true;
}

/* Takes a handle over as result `number`. False: not what was promised. */
bool aten_accept(const dvt_host_operation *o, kept_handles *k, uint32_t number,
                 tensor_handle handle)
{
    const dvt_tensor *expected = o->outputs[number];
    bool defined = false;
    if (expected == NULL) {
        torch.drop(handle);
        return true;
    }
    if (torch.is_defined(handle, &defined) != 0 ||
        !defined) { /* Python says which is missing */
        torch.drop(handle);
        return false;
    }
    int64_t *sizes, *strides;
    int32_t dtype = k->slots[o->input_count + number].dtype;
    uint32_t item = expected->dtype.bits / 8;
    bool into = number < 32 && (o->into >> number & 1u);
    bool fits = has_shape(handle, expected, dtype, &sizes, &strides);
    void *storage = fits ? storage_of(handle, item) : NULL;
    if (fits && !into &&
        (!lies_as(expected, sizes, strides) || is_shared(o, number, storage))) {
        fits = lay_out(expected, dtype, &handle) &&
               has_shape(handle, expected, dtype, &sizes, &strides);
        storage = fits ? storage_of(handle, item) : NULL;
    }
    result *r = fits ? calloc(1, sizeof *r) : NULL;
    void *data = NULL;
    if (r == NULL || torch.data(handle, &data) != 0) {
        free(r);
        torch.drop(handle);
        return false;
    }
    r->managed.version.major = 1;
    r->managed.manager_ctx = r;
    r->managed.deleter = delete_result;
    r->managed.tensor = *expected;
    r->managed.tensor.data = data;
    r->managed.tensor.byte_offset = 0;
    r->managed.tensor.shape = sizes;
    r->managed.tensor.strides = strides;
    r->handle = handle;
    r->storage = storage;
    o->made[number] = &r->managed;
    return true;
}

static void forget_results(const dvt_host_operation *o)
{
    for (uint32_t i = 0; i < o->output_count; i++)
        if (o->made[i] != NULL) {
            o->made[i]->deleter(o->made[i]);
            o->made[i] = NULL;
        }
}

/* ---- functions of their own ---- */

double aten_real(const arg *a)
{
    double value;
    memcpy(&value, &a->word, sizeof value);
    return value;
}

static bool run_sum(const aten_plan *plan, const dvt_host_operation *o, kept_handles *k)
{
    const arg *a = plan->arguments.items;
    tensor_handle made = NULL, left = aten_input(k, o, a[0].word),
                  right = a[1].kind == ARG_TENSOR ? aten_input(k, o, a[1].word) : NULL;
    if (a[0].kind != ARG_TENSOR || left == NULL || right == NULL)
        return false;
    bool plus = strcmp(plan->op, "aten::add") == 0;
    return (plus ? torch.add : torch.subtract)(left, right, aten_real(&a[2]), &made) == 0 &&
           aten_accept(o, k, 0, made);
}

/* A list of plain numbers and sizes; false where it is longer than any convolution's. */
static bool read_sizes(const arg *list, const dvt_host_operation *o, int64_t values[8])
{
    if (list->kind != ARG_LIST || list->count > 8)
        return false;
    for (uint32_t i = 0; i < list->count; i++) {
        const arg *item = &list->items[i];
        if (item->kind == ARG_NUMBER && item->word < o->attribute_count)
            values[i] = o->attributes[item->word].i;
        else if (item->kind == ARG_WORD)
            values[i] = (int64_t)item->word;
        else
            return false;
    }
    return true;
}

/* convolution(x, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
 */
static bool run_convolution(const aten_plan *plan, const dvt_host_operation *o, kept_handles *k)
{
    const arg *a = plan->arguments.items;
    int64_t lists[4][8];
    static const int places[] = {3, 4, 5, 7};
    for (int i = 0; i < 4; i++)
        if (!read_sizes(&a[places[i]], o, lists[i]))
            return false;
    if (a[0].kind != ARG_TENSOR || a[1].kind != ARG_TENSOR || a[6].kind != ARG_WORD ||
        a[8].kind != ARG_WORD)
        return false;
    tensor_handle made = NULL, bias = NULL, x = aten_input(k, o, a[0].word),
                  weight = aten_input(k, o, a[1].word);
    if (a[2].kind == ARG_SOME && (bias = aten_input(k, o, a[2].items[0].word)) == NULL)
        return false;
    return x != NULL && weight != NULL &&
           torch.convolution(x, weight, bias != NULL ? &bias : NULL, lists[0], a[3].count,
                             lists[1], a[4].count, lists[2], a[5].count, (int32_t)a[6].word,
                             lists[3], a[7].count, (int64_t)a[8].word, &made) == 0 &&
           aten_accept(o, k, 0, made);
}

static const struct {
    const char *name;
    const void *place; /* of the function's address */
    aten_direct run;
    bool dispatches;
} DIRECT[] = {
    {"mm", &torch.mm, aten_run_product, true},
    {"bmm", &torch.bmm, aten_run_product, true},
    {"addmm", &torch.addmm, aten_run_product, false},
    {"baddbmm", &torch.baddbmm, aten_run_product, false},
    {"add", &torch.add, run_sum, false},
    {"sub", &torch.subtract, run_sum, false},
    {"convolution", &torch.convolution, run_convolution, true},
};

bool aten_find_direct(aten_plan *plan, const char *name)
{
    for (size_t i = 0; i < sizeof DIRECT / sizeof *DIRECT; i++) {
        void *address;
        memcpy(&address, DIRECT[i].place, sizeof address);
        if (strcmp(DIRECT[i].name, name) != 0 || address == NULL)
            continue;
        plan->direct = DIRECT[i].run;
        plan->dispatches = DIRECT[i].dispatches;
        return true;
    }
    return false;
}

/* ---- the dispatcher ---- */

static bool build(const arg *a, const dvt_host_operation *o, kept_handles *k, uint64_t *word);

static bool build_some(const arg *a, const dvt_host_operation *o, kept_handles *k,
                       uint64_t *word)
{
    uint64_t *cell = NULL;
    if (torch.cell_new != NULL && torch.cell_new(&cell) != 0)
        return false;
    if (torch.cell_new == NULL)
        cell = torch.operator_new(sizeof *cell);
    *word = (uint64_t)(uintptr_t)cell;
    return build(&a->items[0], o, k, cell);
}

static bool build_list(const arg *a, const dvt_host_operation *o, kept_handles *k,
                       uint64_t *word)
{
    list_handle list = NULL;
    if (torch.list_new(a->count, &list) != 0)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        uint64_t item = 0;
        if (!build(&a->items[i], o, k, &item) || torch.list_push(list, item) != 0)
            return false;
    }
    *word = (uint64_t)(uintptr_t)list;
    return true;
}

/* An argument as the word that the dispatcher takes, and takes over. */
static bool build(const arg *a, const dvt_host_operation *o, kept_handles *k, uint64_t *word)
{
    switch (a->kind) {
    case ARG_NONE:
        *word = 0;
        return true;
    case ARG_TENSOR: {
        tensor_handle made = NULL, handle = aten_input(k, o, a->word);
        if (handle == NULL || torch.again(handle, &made) != 0)
            return false;
        *word = (uint64_t)(uintptr_t)made;
        return true;
    }
    case ARG_NUMBER:
        *word = a->word < o->attribute_count ? (uint64_t)o->attributes[a->word].i : 0;
        return true;
    case ARG_WORD:
        *word = a->word;
        return true;
    case ARG_SOME:
        return build_some(a, o, k, word);
    default:
        return build_list(a, o, k, word);
    }
}

/* Results that come as one list, each taken over. */
static bool accept_list(const dvt_host_operation *o, kept_handles *k, list_handle list)
{
    size_t count = 0;
    bool fits = torch.list_size(list, &count) == 0 && count == o->output_count;
    for (size_t i = 0; i < count; i++) {
        uint64_t word = 0;
        if (torch.list_get(list, i, &word) != 0)
            continue;
        tensor_handle handle = (tensor_handle)(uintptr_t)word;
        if (fits)
            fits = aten_accept(o, k, (uint32_t)i, handle);
        else
            torch.drop(handle);
    }
    torch.list_drop(list);
    return fits;
}

static bool run_dispatched(const aten_plan *plan, const dvt_host_operation *o, kept_handles *k)
{
    uint64_t stack[ATEN_STACK];
    for (uint32_t i = 0; i < o->input_count; i++) /* what may fail comes before what is taken */
        if (aten_input(k, o, i) == NULL)
            return false;
    for (uint32_t i = 0; i < plan->arguments.count; i++)
        if (!build(&plan->arguments.items[i], o, k, &stack[i]))
            return false;
    torch_status failed =
        torch.dispatch_versioned != NULL && torch.version != NULL
            ? torch.dispatch_versioned(plan->op, plan->overload, stack, torch.version())
            : torch.dispatch(plan->op, plan->overload, stack);
    if (failed != 0)
        return false;
    if (plan->as_list)
        return accept_list(o, k, (list_handle)(uintptr_t)stack[0]);
    bool fits = true;
    for (uint32_t i = 0; i < plan->results; i++) {
        tensor_handle handle = (tensor_handle)(uintptr_t)stack[i];
        if (fits && i < o->output_count)
            fits = aten_accept(o, k, i, handle);
        else
            torch.drop(handle);
    }
    return fits;
}

bool aten_run(const aten_plan *plan, const dvt_host_operation *o)
{
    kept_handles *k = *o->kept;
    if (k == NULL && (*o->kept = k = new_kept(o)) == NULL)
        return false;
    bool direct = plan->direct != NULL && k->floating;
    if (!k->usable || (plan->direct != NULL && !direct && !plan->dispatches))
        return false;
    if (direct ? plan->direct(plan, o, k) : run_dispatched(plan, o, k))
        return true;
    forget_results(o);
    return false;
}
