/* One call: check the inputs, find or make a frame for their sizes, run the instructions. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FRAMES  16
#define MAX_SYMBOLS 64

/* ---- outputs: one block of memory, freed by its deleter ---- */

static void delete_output(dvt_managed *self)
{
    free(self);
}

static dvt_managed *new_output(const dvt_tensor *like, uint64_t bytes)
{
    size_t rank = (size_t)like->ndim, head = sizeof(dvt_managed) + 16 * rank;
    /* Plain malloc, aligned by hand: aligned_alloc has no fast path for small blocks. */
    dvt_managed *m = bytes < INT64_MAX / 2 ? malloc(head + (size_t)bytes + DVT_ALIGN) : NULL;
    if (m == NULL)
        return NULL;
    memset(m, 0, sizeof *m);
    m->version.major = 1;
    m->deleter = delete_output;
    m->tensor = *like;
    m->tensor.shape = (int64_t *)(void *)(m + 1);
    m->tensor.strides = m->tensor.shape + rank;
    if (rank > 0) {
        memcpy(m->tensor.shape, like->shape, 8 * rank);
        memcpy(m->tensor.strides, like->strides, 8 * rank);
    }
    uintptr_t start = (uintptr_t)m + head;
    m->tensor.data = (char *)m + head + (DVT_ALIGN - start % DVT_ALIGN) % DVT_ALIGN;
    return m;
}

/* ---- inputs ---- */

static dvt_status wrong(dvt_error *error, const buffer_record *b, const char *what,
                        long long got, long long expected)
{
    return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has %s %lld, expected %lld",
                    dvt_shown(b->name.size), (const char *)b->name.data, what, got, expected);
}

static const char *dtype_name(dvt_dtype dtype, char *text)
{
    static const char *const names[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
    char *at = text;
    const char *name = dtype.code == DVT_BOOL ? "bool"
                       : dtype.code < 6       ? names[dtype.code]
                                              : "float8-kind";
    while (*name)
        *at++ = *name++;
    if (dtype.code < 6) {
        if (dtype.bits >= 100)
            *at++ = (char)('0' + dtype.bits / 100);
        if (dtype.bits >= 10)
            *at++ = (char)('0' + dtype.bits / 10 % 10);
        *at++ = (char)('0' + dtype.bits % 10);
    }
    *at = 0;
    return text;
}

static dvt_status check_kind(const buffer_record *b, const dvt_tensor *t, dvt_error *error)
{
    char got[24], expected[24];
    if (!dvt_same_dtype(t->dtype, b->dtype))
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' is %s, expected %s",
                        dvt_shown(b->name.size), (const char *)b->name.data,
                        dtype_name(t->dtype, got), dtype_name(b->dtype, expected));
    if (t->device.type != DVT_CPU)
        return dvt_fail(error, DVT_ERROR_GUARD,
                        "input '%.*s' is on a device of DLPack type %d, expected the CPU",
                        dvt_shown(b->name.size), (const char *)b->name.data, t->device.type);
    if (t->ndim != b->rank)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has %d dimensions, expected %d",
                        dvt_shown(b->name.size), (const char *)b->name.data, t->ndim, b->rank);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return wrong(error, b, "a negative size", t->shape[i], 0);
    return DVT_OK;
}

static dvt_status check_shape(const buffer_record *b, const dvt_tensor *t,
                              const int64_t *expected, dvt_error *error)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] != expected[i])
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "input '%.*s' has size %lld in dimension %d, expected %lld",
                            dvt_shown(b->name.size), (const char *)b->name.data,
                            (long long)t->shape[i], i, (long long)expected[i]);
    return DVT_OK;
}

static bool is_empty(const dvt_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    return false;
}

/* Whether an input lies as the program expects, so that it can be used where it is. */
static bool fits_in_place(const dvt_tensor *t, const dvt_tensor *expected, uint32_t item)
{
    uintptr_t address = (uintptr_t)dvt_data(t);
    uint32_t align = item > 8 ? 8 : item;
    if (address % align != 0)
        return false;
    int64_t row = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        int64_t stride = t->strides != NULL ? t->strides[i] : row;
        if (t->shape[i] != 1 && stride != expected->strides[i])
            return false;
        row *= t->shape[i]; /* no overflow: the shape is the expected one, which was checked */
    }
    return true;
}

/* A strided tensor to or from memory of the expected layout; NULL strides mean row-major. */
static void repack(const dvt_tensor *to, const dvt_tensor *from)
{
    int64_t rows[2][DVT_MAX_RANK];
    dvt_tensor sides[2] = {*to, *from};
    for (int side = 0; side < 2; side++) {
        dvt_tensor *t = &sides[side];
        int64_t step = 1;
        for (int32_t i = t->ndim - 1; t->strides == NULL && i >= 0; i--) {
            rows[side][i] = step;
            step *= t->shape[i];
        }
        if (t->strides == NULL)
            t->strides = rows[side];
    }
    dvt_copy_tensor(&sides[0], &sides[1]);
}

static dvt_status bind_input(const program *p, frame *f, uint32_t n, const dvt_tensor *given,
                             dvt_error *error)
{
    uint32_t index = p->inputs[n];
    dvt_tensor *t = &f->tensors[index];
    if (is_empty(t)) {
        t->data = f; /* any address will do: nothing is read */
        return DVT_OK;
    }
    if (given->data == NULL)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has no data",
                        dvt_shown(p->buffers[index].name.size),
                        (const char *)p->buffers[index].name.data);
    if (fits_in_place(given, t, p->buffers[index].item)) {
        t->data = dvt_data(given);
        return DVT_OK;
    }
    f->copies[n] = aligned_alloc(DVT_ALIGN, (f->extents[index] + 63) / 64 * 64);
    if (f->copies[n] == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    t->data = f->copies[n];
    if (f->extents[index] > (uint64_t)dvt_numel(t) * p->buffers[index].item)
        memset(t->data, 0, f->extents[index]); /* a kernel may read what lies between */
    repack(t, given);
    return DVT_OK;
}

/* The bytes a tensor may touch, for telling whether two overlap. */
static void bounds(const dvt_tensor *t, uintptr_t *low, uintptr_t *high)
{
    int64_t down = 0, up = 0, row = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        int64_t reach = (t->shape[i] - 1) * (t->strides != NULL ? t->strides[i] : row);
        row *= t->shape[i];
        if (reach < 0)
            down += reach;
        else
            up += reach;
    }
    int64_t item = t->dtype.bits / 8;
    *low = (uintptr_t)dvt_data(t) + (uintptr_t)(down * item);
    *high = (uintptr_t)dvt_data(t) + (uintptr_t)((up + 1) * item);
}

/* A model that writes to its inputs was exported with inputs that do not overlap. */
static dvt_status check_overlap(const program *p, const dvt_tensor *given, dvt_error *error)
{
    for (uint32_t i = 0; i < p->input_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uintptr_t a, b, c, d;
            if (is_empty(&given[i]) || is_empty(&given[j]))
                continue;
            bounds(&given[i], &a, &b);
            bounds(&given[j], &c, &d);
            if (a < d && c < b)
                return dvt_fail(
                    error, DVT_ERROR_GUARD,
                    "inputs %u and %u share memory, and the model writes to its inputs", j, i);
        }
    return DVT_OK;
}

/* Point the views of a buffer at its memory. */
static void bind_views(const program *p, frame *f, uint32_t owner)
{
    for (uint32_t i = p->buffers[owner].first_view; i != DVT_NONE; i = p->buffers[i].next_view)
        f->tensors[i].data = (char *)f->tensors[owner].data + f->offsets[i];
}

/* ---- frames ---- */

static dvt_status read_number(const buffer_record *b, const symbol_record *s,
                              const dvt_tensor *input, int64_t *value, dvt_error *error)
{
    if (input->data == NULL)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has no data",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    memcpy(value, dvt_data(input), sizeof *value);
    if (*value >= s->low && *value <= s->high)
        return DVT_OK;
    return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' is %lld, expected %lld to %lld",
                    dvt_shown(b->name.size), (const char *)b->name.data, (long long)*value,
                    (long long)s->low, (long long)s->high);
}

static dvt_status read_symbols(const program *p, const dvt_tensor *inputs, int64_t *values,
                               dvt_error *error)
{
    for (uint32_t i = 0; i < p->symbol_count; i++) {
        const symbol_record *s = &p->symbols[i];
        const buffer_record *b = &p->buffers[p->inputs[s->input]];
        if (s->axis == DVT_NONE) {
            dvt_status status = read_number(b, s, &inputs[s->input], &values[i], error);
            if (status != DVT_OK)
                return status;
            continue;
        }
        values[i] = inputs[s->input].shape[s->axis];
        if (values[i] >= s->low && values[i] <= s->high)
            continue;
        if (s->high == INT64_MAX)
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "input '%.*s' has size %lld in dimension %u; the dynamic size %.*s "
                            "must be at least %lld",
                            dvt_shown(b->name.size), (const char *)b->name.data,
                            (long long)values[i], s->axis, dvt_shown(s->name.size),
                            (const char *)s->name.data, (long long)s->low);
        return dvt_fail(
            error, DVT_ERROR_GUARD,
            "input '%.*s' has size %lld in dimension %u; the dynamic size %.*s must be "
            "%lld to %lld",
            dvt_shown(b->name.size), (const char *)b->name.data, (long long)values[i], s->axis,
            dvt_shown(s->name.size), (const char *)s->name.data, (long long)s->low,
            (long long)s->high);
    }
    return DVT_OK;
}

static dvt_status take_frame(dvt_artifact *a, const int64_t *symbols, frame **found,
                             dvt_error *error)
{
    size_t bytes = a->program.symbol_count * sizeof *symbols;
    *found = NULL;
    dvt_lock_take(&a->lock);
    for (frame **at = &a->frames; *at != NULL; at = &(*at)->next)
        if (bytes == 0 || memcmp((*at)->symbols, symbols, bytes) == 0) {
            *found = *at;
            *at = (*found)->next;
            a->frame_count--;
            break;
        }
    dvt_lock_give(&a->lock);
    return *found != NULL ? DVT_OK : dvt_frame_new(a, symbols, found, error);
}

static void give_frame(dvt_artifact *a, frame *f)
{
    frame *oldest = NULL;
    dvt_lock_take(&a->lock);
    a->memory = f->memory;
    f->next = a->frames;
    a->frames = f;
    if (++a->frame_count > MAX_FRAMES) {
        frame **at = &a->frames;
        while ((*at)->next != NULL)
            at = &(*at)->next;
        oldest = *at;
        *at = NULL;
        a->frame_count--;
    }
    dvt_lock_give(&a->lock);
    dvt_frame_free(oldest);
}

/* ---- instructions ---- */

static bool same_layout(const dvt_tensor *got, const dvt_tensor *expected)
{
    if (!dvt_same_dtype(got->dtype, expected->dtype) || got->ndim != expected->ndim ||
        got->device.type != DVT_CPU)
        return false;
    for (int32_t i = 0; i < got->ndim; i++)
        if (got->shape[i] != expected->shape[i])
            return false;
    return is_empty(expected) || (got->data != NULL && fits_in_place(got, expected, 1));
}

/* What a host call is called: an operator, or the backend whose blob it runs. */
static span host_name(const program *p, const instruction *in)
{
    if (in->opcode == OP_BLOB)
        return dvt_blob_owner(p, in->index);
    return (span){(const uint8_t *)p->host_calls[in->index].op,
                  p->host_calls[in->index].op_length};
}

static void delete_managed(dvt_managed *managed)
{
    if (managed != NULL && managed->deleter != NULL)
        managed->deleter(managed);
}

static dvt_status not_as_promised(const program *p, const instruction *in, dvt_error *error)
{
    span name = host_name(p, in);
    return dvt_fail(error, DVT_ERROR_HOST,
                    "%.*s gave a result of another shape, layout or dtype than promised",
                    dvt_shown(name.size), (const char *)name.data);
}

/* A result that the host did not write where it belongs: copied there. */
static dvt_status store_result(const program *p, const instruction *in, dvt_managed *made,
                               const dvt_tensor *to, dvt_error *error)
{
    const dvt_tensor *from = &made->tensor;
    bool fits = dvt_same_dtype(from->dtype, to->dtype) && from->ndim == to->ndim &&
                from->device.type == DVT_CPU && (is_empty(to) || from->data != NULL);
    for (int32_t i = 0; fits && i < to->ndim; i++)
        fits = from->shape[i] == to->shape[i];
    if (fits && !is_empty(to))
        repack(to, from);
    delete_managed(made);
    return fits ? DVT_OK : not_as_promised(p, in, error);
}

static dvt_status keep_result(const program *p, frame *f, const instruction *in,
                              uint32_t number, dvt_managed *made, dvt_error *error)
{
    uint32_t buffer = in->outputs[number];
    if (buffer == DVT_NONE) {
        delete_managed(made);
        return DVT_OK;
    }
    if (number < 32 && (in->into >> number & 1u))
        return made != NULL ? store_result(p, in, made, &f->tensors[buffer], error) : DVT_OK;
    if (made == NULL)
        return dvt_fail(error, DVT_ERROR_HOST, "a host operation gave no result %u", number);
    f->held[buffer] = made;
    if (!same_layout(&made->tensor, &f->tensors[buffer]))
        return not_as_promised(p, in, error);
    f->tensors[buffer].data = dvt_data(&made->tensor);
    bind_views(p, f, buffer);
    return DVT_OK;
}

static dvt_status run_host(const program *p, frame *f, uint32_t index,
                           const dvt_run_options *options, dvt_error *error)
{
    const instruction *in = &p->instructions[index];
    const dvt_call *call = &f->calls[index];
    dvt_managed *few[8] = {NULL};
    dvt_managed **made =
        in->output_count <= 8 ? few : calloc(in->output_count, sizeof(dvt_managed *));
    if (made == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    dvt_host_operation operation = {
        .struct_size = sizeof operation,
        .call = in->index + (in->opcode == OP_BLOB ? p->host_call_count : 0),
        .input_count = in->input_count,
        .attribute_count = in->attribute_count,
        .output_count = in->output_count,
        .into = in->into,
        .inputs = call->inputs,
        .buffers = in->inputs,
        .held = f->held,
        .attributes = call->attributes,
        .outputs = call->outputs,
        .made = made,
        .kept = &f->kept[index],
    };
    dvt_status status = options->host(options->host_context, &operation, error);
    for (uint32_t i = 0; i < in->output_count; i++) {
        dvt_status kept = status == DVT_OK ? keep_result(p, f, in, i, made[i], error) : DVT_OK;
        if (status == DVT_OK)
            status = kept;
        else
            delete_managed(made[i]);
    }
    if (made != few)
        free(made);
    return status;
}

static dvt_status run_copy(const program *p, const dvt_call *call, const instruction *in,
                           dvt_error *error)
{
    const dvt_tensor *to = call->outputs[0], *from = call->inputs[0];
    if (p->buffers[in->outputs[0]].root != p->buffers[in->inputs[0]].root) {
        dvt_copy_tensor(to, from);
        return DVT_OK;
    }
    if (is_empty(from))
        return DVT_OK;
    /* Both may share elements: go through a copy of the source. */
    int64_t rows[DVT_MAX_RANK], step = p->buffers[in->inputs[0]].item;
    dvt_tensor between = *from;
    between.strides = rows;
    between.data = malloc((size_t)(dvt_numel(from) * step));
    if (between.data == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    step = 1;
    for (int32_t i = from->ndim - 1; i >= 0; i--) {
        rows[i] = step;
        step *= from->shape[i];
    }
    dvt_copy_tensor(&between, from);
    dvt_copy_tensor(to, &between);
    free(between.data);
    return DVT_OK;
}

static void release_host(frame *f, uint32_t buffer)
{
    dvt_managed *held = f->held[buffer];
    f->held[buffer] = NULL;
    delete_managed(held);
}

/* Generated kernels return a status and leave the words to us. */
static dvt_status run_kernel(const dvt_kernel *kernel, const dvt_call *call, dvt_error *error)
{
    dvt_status status = kernel->run(call, error);
    if (status == DVT_OK || (error != NULL && error->message[0] != 0))
        return status;
    return dvt_fail(error, status, "%s",
                    status == DVT_ERROR_INDEX ? "index out of range in self"
                    : status == DVT_ERROR_BOUNDS
                        ? "index is out of bounds for the dimension it selects from"
                    : status == DVT_ERROR_DIVISOR ? "ZeroDivisionError"
                                                  : "a kernel failed");
}

static dvt_status run_instructions(const program *p, frame *f, const dvt_run_options *options,
                                   dvt_error *error)
{
    dvt_status status = DVT_OK;
    if (error != NULL)
        error->message[0] = 0;
    device_turn turn = {0};
    dvt_device_start(f);
    for (uint32_t i = 0; status == DVT_OK && i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        if (turn.plugin != NULL && in->device == 0)
            status = dvt_device_leave(f, &turn, status, error);
        if (status != DVT_OK)
            break;
        if (in->device != 0)
            status = dvt_device_step(f, in, &turn, error);
        else if (in->opcode == OP_KERNEL)
            status = run_kernel(in->kernel, &f->calls[i], error);
        else if (in->opcode == OP_COPY)
            status = run_copy(p, &f->calls[i], in, error);
        else
            status = run_host(p, f, i, options, error);
        if (turn.plugin != NULL && in->release_count > 0) /* a copy may still read them */
            status = dvt_device_leave(f, &turn, status, error);
        for (uint32_t n = 0; n < in->release_count; n++)
            release_host(f, p->releases[in->release_at + n]);
    }
    return dvt_device_leave(f, &turn, status, error);
}

/* Inputs that were repacked and written to are copied back. */
static void return_inputs(const program *p, frame *f, const dvt_tensor *inputs, bool write_back)
{
    for (uint32_t i = 0; i < p->input_count; i++) {
        if (f->copies[i] != NULL && write_back && p->writes_inputs)
            repack(&inputs[i], &f->tensors[p->inputs[i]]);
        free(f->copies[i]);
        f->copies[i] = NULL;
    }
}

static dvt_status make_outputs(const program *p, frame *f, dvt_managed **outputs,
                               dvt_error *error)
{
    for (uint32_t i = 0; i < p->output_count; i++) {
        uint32_t shown = p->outputs[i], owner = p->buffers[shown].owner;
        if (p->buffers[shown].handed_out)
            continue; /* the host will make it */
        outputs[i] = new_output(&f->tensors[shown], f->extents[owner]);
        if (outputs[i] == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "no memory for output %u", i);
        f->tensors[owner].data = outputs[i]->tensor.data;
        bind_views(p, f, owner);
        outputs[i]->tensor.data = (char *)outputs[i]->tensor.data + f->offsets[shown];
    }
    return DVT_OK;
}

static dvt_status run_frame(dvt_artifact *a, frame *f, const dvt_run_options *options,
                            const dvt_tensor *inputs, dvt_managed **outputs, dvt_error *error)
{
    const program *p = &a->program;
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < p->input_count; i++)
        status = check_shape(&p->buffers[p->inputs[i]], &inputs[i],
                             f->tensors[p->inputs[i]].shape, error);
    if (status == DVT_OK && p->writes_inputs && !a->may_overlap)
        status = check_overlap(p, inputs, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->input_count; i++) {
        status = bind_input(p, f, i, &inputs[i], error);
        bind_views(p, f, p->inputs[i]);
    }
    if (status == DVT_OK)
        status = make_outputs(p, f, outputs, error);
    if (status == DVT_OK) {
        if (p->writes_state)
            dvt_lock_take(&a->state_lock);
        status = run_instructions(p, f, options, error);
        if (p->writes_state)
            dvt_lock_give(&a->state_lock);
    }
    return_inputs(p, f, inputs, status == DVT_OK);
    for (uint32_t i = 0; status == DVT_OK && i < p->output_count; i++)
        if (p->buffers[p->outputs[i]].handed_out) {
            outputs[i] = f->held[p->outputs[i]];
            f->held[p->outputs[i]] = NULL;
        }
    for (uint32_t i = 0; status != DVT_OK && i < p->buffer_count; i++)
        release_host(f, i);
    for (uint32_t i = 0; status != DVT_OK && i < p->output_count; i++) {
        free(outputs[i]);
        outputs[i] = NULL;
    }
    return status;
}

dvt_status dvt_run(dvt_artifact *a, const dvt_run_options *options, const dvt_tensor *inputs,
                   size_t input_count, dvt_managed **outputs, size_t output_count,
                   dvt_error *error)
{
    const program *p = &a->program;
    int64_t few[MAX_SYMBOLS];
    if (input_count != p->input_count)
        return dvt_fail(error, DVT_ERROR_GUARD, "called with %zu tensors, expected %u",
                        input_count, p->input_count);
    if (output_count != p->output_count)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "room for %zu outputs, but there are %u",
                        output_count, p->output_count);
    if (a->inspect_only)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "the artifact was opened to be looked at only");
    if (p->host_call_count + p->host_blob_count > 0 &&
        (options == NULL || options->host == NULL))
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "the program calls host operations");
    if (p->symbol_count > MAX_SYMBOLS)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "more than %d dynamic sizes",
                        MAX_SYMBOLS);
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < p->input_count; i++)
        status = check_kind(&p->buffers[p->inputs[i]], &inputs[i], error);
    if (status == DVT_OK)
        status = read_symbols(p, inputs, few, error);
    frame *f = NULL;
    if (status == DVT_OK)
        status = take_frame(a, few, &f, error);
    if (status != DVT_OK)
        return status;
    for (uint32_t i = 0; i < p->output_count; i++)
        outputs[i] = NULL;
    int before = dvt_ask_threads(options != NULL ? (int)options->threads : 0);
    status = run_frame(a, f, options, inputs, outputs, error);
    dvt_ask_threads(before);
    give_frame(a, f);
    return status;
}
