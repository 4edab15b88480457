/* A frame: the program bound to one set of sizes. Shapes, strides and offsets are computed,
 * every buffer is shown to lie within its memory, the arena is planned, and each kernel has
 * accepted its operands. A frame serves one call at a time and is kept for the next one of the
 * same sizes. */
#include "call.h"
#include "defined.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (INT64_MAX / 2)

static void *carve(char **at, size_t count, size_t size)
{
    void *start = *at;
    *at += (count * size + 15) / 16 * 16;
    return start;
}

static size_t room(size_t count, size_t size)
{
    return (count * size + 15) / 16 * 16;
}

static frame *allocate(const program *p, uint64_t *bytes)
{
    size_t dims = 0;
    for (uint32_t i = 0; i < p->buffer_count; i++)
        dims += 2u * p->buffers[i].rank;
    size_t n = p->buffer_count;
    size_t total = room(1, sizeof(frame)) + room(p->symbol_count, 8) + room(p->size_count, 8) +
                   room(n, sizeof(dvt_tensor)) + room(dims, 8) + 2 * room(n, 8) +
                   room(p->pointer_count, sizeof(void *)) + room(n, 1) +
                   room(p->number_count, 8) + room(p->instruction_count, sizeof(dvt_call)) +
                   room(n, sizeof(void *)) + room(p->input_count, sizeof(void *)) +
                   room(p->instruction_count, sizeof(void *)) + room(p->instruction_count, 1) +
                   room(p->instruction_count, sizeof(uint32_t));
    char *at = calloc(1, total);
    *bytes = total;
    if (at == NULL)
        return NULL;
    frame *f = carve(&at, 1, sizeof(frame));
    f->symbols = carve(&at, p->symbol_count, 8);
    f->sizes = carve(&at, p->size_count, 8);
    f->tensors = carve(&at, n, sizeof(dvt_tensor));
    int64_t *numbers = carve(&at, dims, 8);
    f->offsets = carve(&at, n, 8);
    f->extents = carve(&at, n, 8);
    f->pointers = carve(&at, p->pointer_count, sizeof(void *));
    f->gaps = carve(&at, n, 1);
    f->numbers = carve(&at, p->number_count, 8);
    f->calls = carve(&at, p->instruction_count, sizeof(dvt_call));
    f->held = carve(&at, n, sizeof(void *));
    f->copies = carve(&at, p->input_count, sizeof(void *));
    f->kept = carve(&at, p->instruction_count, sizeof(void *));
    f->is_shared = carve(&at, p->instruction_count, 1);
    f->strand_of = carve(&at, p->instruction_count, sizeof(uint32_t));
    f->kept_count = p->instruction_count;
    for (uint32_t i = 0; i < n; i++) {
        f->tensors[i].shape = numbers;
        f->tensors[i].strides = numbers + p->buffers[i].rank;
        numbers += 2u * p->buffers[i].rank;
    }
    return f;
}

void dvt_frame_free(frame *f)
{
    if (f == NULL)
        return;
    for (uint32_t i = 0; f->host_free != NULL && i < f->kept_count; i++)
        if (f->kept[i] != NULL)
            f->host_free(f->kept[i]);
    dvt_devices_unbind(f);
    free(f->clearings);
    free(f->stretches);
    free(f->zeros);
    if (f->arena != NULL)
        dvt_release(f->allocator, f->arena, f->memory.peak);
    free(f);
}

bool dvt_reach(const dvt_tensor *t, uint64_t *elements)
{
    uint64_t total = 1;
    uint64_t count = 1; /* kernels multiply sizes too, even where a stride or a size is zero */
    bool empty = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        uint64_t step, size = t->shape[i] > 0 ? (uint64_t)t->shape[i] : 1;
        empty = empty || t->shape[i] == 0;
        if (__builtin_mul_overflow(count, size, &count) || count > MAX_BYTES / 16 ||
            __builtin_mul_overflow(size - 1, (uint64_t)t->strides[i], &step) ||
            __builtin_add_overflow(total, step, &total) || total > MAX_BYTES / 16)
            return false;
    }
    if (empty)
        total = 0;
    *elements = total;
    return true;
}

static dvt_status shape_buffer(const program *p, frame *f, uint32_t index, dvt_error *error)
{
    const buffer_record *b = &p->buffers[index];
    dvt_tensor *t = &f->tensors[index];
    t->device = (dvt_device){b->device == 0 ? DVT_CPU : DVT_EXTENSION, 0};
    t->ndim = b->rank;
    t->dtype = b->dtype;
    for (uint32_t i = 0; i < b->rank; i++) {
        t->shape[i] = f->sizes[b->dims[i]];
        t->strides[i] = f->sizes[b->dims[b->rank + i]];
        if (t->shape[i] < 0 || t->strides[i] < 0)
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "buffer '%.*s' gets a negative size or stride",
                            dvt_shown(b->name.size), (const char *)b->name.data);
    }
    uint64_t elements, offset = (uint64_t)f->sizes[b->offset];
    if (!dvt_reach(t, &elements) || f->sizes[b->offset] < 0 || offset > MAX_BYTES / 16)
        return dvt_fail(error, DVT_ERROR_OVERFLOW, "buffer '%.*s' does not fit 64 bits",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    uint64_t bytes = elements * b->item;
    if (elements == 0)
        offset = 0;
    if (b->kind == KIND_VIEW) {
        if ((offset + elements) * b->item > f->extents[b->base])
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "buffer '%.*s' reaches outside its base", dvt_shown(b->name.size),
                            (const char *)b->name.data);
        f->offsets[index] = offset * b->item;
        return DVT_OK;
    }
    f->extents[index] = bytes;
    f->gaps[index] = dvt_has_gaps(t);
    if (offset != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "buffer '%.*s' has an offset of its own",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    if ((b->kind == KIND_CONSTANT || b->kind == KIND_STATE) && bytes > b->data_size)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "constant '%.*s' is larger than its data",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    return DVT_OK;
}

/* A kernel writes its whole result: two elements at one address would race. Where a dimension
 * has no length there are none. */
static bool overlaps_itself(const dvt_tensor *t)
{
    bool found = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return false;
        found = found || (t->shape[i] > 1 && t->strides[i] == 0);
    }
    return found;
}

static void bind_fixed(const dvt_artifact *a, frame *f)
{
    const program *p = &a->program;
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        uint32_t root = p->buffers[i].root;
        unsigned char *start = NULL;
        if (p->buffers[i].device != 0)
            continue;
        if (p->buffers[root].kind == KIND_CONSTANT)
            start = (unsigned char *)(uintptr_t)a->file.sections[DVT_CONSTANTS].data +
                    p->buffers[root].data_at;
        if (start != NULL)
            f->tensors[i].data = start + f->offsets[i];
    }
    if (a->state_count > 0)
        dvt_bind_state(p, f, &a->own_state);
}

/* Whether an instruction fills memory that exists, rather than having the host make it. */
static bool writes_memory(const instruction *in, uint32_t output)
{
    return !in->calls_host || (output < 32 && (in->into >> output & 1u));
}

static void bind_operands(const program *p, frame *f, uint32_t index)
{
    const instruction *in = &p->instructions[index];
    const dvt_tensor **pointers = f->pointers + in->pointers_at;
    for (uint32_t i = 0; i < in->output_count; i++)
        pointers[i] = in->outputs[i] == DVT_NONE ? NULL : &f->tensors[in->outputs[i]];
    for (uint32_t i = 0; i < in->input_count; i++)
        pointers[in->output_count + i] =
            in->inputs[i] == DVT_NONE ? NULL : &f->tensors[in->inputs[i]];
    for (uint32_t i = 0; i < in->attribute_count; i++) {
        const uint8_t *at = in->attributes + 16 * (size_t)i;
        uint32_t tag, size;
        memcpy(&tag, at, 4);
        memcpy(&size, at + 4, 4);
        dvt_number *number = &f->numbers[in->numbers_at + i];
        if (tag == TAG_SIZE)
            number->i = f->sizes[size];
        else
            memcpy(number, at + 8, 8);
    }
    f->calls[index] = (dvt_call){sizeof(dvt_call),
                                 in->output_count,
                                 in->input_count,
                                 in->attribute_count,
                                 pointers,
                                 pointers + in->output_count,
                                 f->numbers + in->numbers_at,
                                 dvt_parallel,
                                 in->kernel};
}

static dvt_status check_copy(const frame *f, uint32_t index, bool on_device, dvt_error *error)
{
    const dvt_tensor *to = f->calls[index].outputs[0], *from = f->calls[index].inputs[0];
    for (int32_t i = 0; i < to->ndim; i++)
        if (to->shape[i] != from->shape[i] || (on_device && to->strides[i] != from->strides[i]))
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "instruction %u copies between unlike shapes", index);
    return DVT_OK;
}

/* Native code can stop between some points of a kernel's own axes: where those take longer than
 * seconds, the kernel is interpreted, which stops anywhere. */
#define LONGEST_UNIT 0x1p36

static void note_scratch(frame *f, const kernel_work *work)
{
    if (work->pieces == 0)
        return;
    f->scratch = work->scratch > f->scratch ? work->scratch : f->scratch;
    f->pieces = work->pieces > f->pieces ? work->pieces : f->pieces;
}

static dvt_status check_kernel(frame *f, dvt_call *call, operand_use *uses, uint64_t *steps,
                               dvt_error *error)
{
    const dvt_kernel *described = dvt_kernel_described(call->kernel);
    if (described == NULL) {
        dvt_status status = call->kernel->check(call, error);
        *steps = status == DVT_OK ? dvt_work_of(call) : 0;
        return status;
    }
    dvt_call same = *call;
    kernel_work work = {0};
    same.kernel = described;
    dvt_status status = dvt_kernel_ir_look(&same, uses, &work, error);
    *steps = (uint64_t)work.total;
    if (status == DVT_OK && work.unit > LONGEST_UNIT)
        call->kernel = described;
    if (status == DVT_OK && call->kernel == described)
        note_scratch(f, &work);
    return status;
}

/* Binds an instruction and says what it does with its operands: kernels, but for those whose
 * kernel IR says so, read and write all elements; a host may look between those it reads. */
static dvt_status bind_call(const program *p, frame *f, uint32_t index, operand_use *uses,
                            uint64_t *steps, dvt_error *error)
{
    const instruction *in = &p->instructions[index];
    dvt_call *call = &f->calls[index];
    for (uint32_t i = 0; i < in->output_count; i++)
        uses[i] = (operand_use){.fills = true};
    for (uint32_t i = 0; i < in->input_count; i++)
        uses[in->output_count + i] = (operand_use){.reads = true, .gaps = in->calls_host};
    for (uint32_t i = 0; i < in->output_count; i++)
        if (call->outputs[i] != NULL && writes_memory(in, i) &&
            overlaps_itself(call->outputs[i]))
            return dvt_fail(error, DVT_ERROR_MALFORMED, "instruction %u writes to a broadcast",
                            index);
    if (in->opcode == OP_KERNEL)
        return check_kernel(f, call, uses, steps, error);
    *steps = dvt_work_of(call);
    return in->opcode == OP_COPY ? check_copy(f, index, in->device != 0, error) : DVT_OK;
}

static operand_use *new_uses(const program *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        size_t operands = (size_t)in->output_count + in->input_count;
        most = operands > most ? operands : most;
    }
    return calloc(most + 1, sizeof(operand_use));
}

/* A copy within one buffer goes through memory of its own (run.c), for every element: views
 * whose elements overlap have many more of them than their buffer. */
static dvt_status charge_copy(const dvt_artifact *a, const frame *f, uint32_t index,
                              dvt_error *error)
{
    const program *p = &a->program;
    const instruction *in = &p->instructions[index];
    uint64_t total = f->call_bytes + f->bytes;
    if (in->opcode != OP_COPY || in->device != 0 ||
        p->buffers[in->outputs[0]].root != p->buffers[in->inputs[0]].root)
        return DVT_OK;
    uint64_t elements = (uint64_t)dvt_numel(f->calls[index].inputs[0]);
    return dvt_charge_memory(a, &total, elements * p->buffers[in->inputs[0]].item, "copies",
                             error);
}

static dvt_status bind_calls(const dvt_artifact *a, frame *f, dvt_error *error)
{
    const program *p = &a->program;
    definedness d;
    uint64_t work = 0, steps = 0;
    dvt_status status = dvt_defined_begin(&d, p, f, error);
    operand_use *uses = new_uses(p);
    if (status == DVT_OK && uses == NULL)
        status = dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; status == DVT_OK && i < p->instruction_count; i++) {
        status = bind_call(p, f, i, uses, &steps, error);
        if (status == DVT_OK)
            status = dvt_charge_work(a, &work, steps, i, error);
        if (status == DVT_OK)
            status = charge_copy(a, f, i, error);
        if (status == DVT_OK)
            status = dvt_defined_step(&d, i, uses, error);
    }
    if (status == DVT_OK)
        status = dvt_defined_end(&d, error);
    dvt_defined_free(&d);
    free(uses);
    return status;
}

void dvt_frame_clear(frame *f, uint32_t at)
{
    for (; f->clearing_next < f->clearing_count; f->clearing_next++) {
        const clearing *c = &f->clearings[f->clearing_next];
        if (c->at != at)
            return;
        memset((char *)f->tensors[c->buffer].data + c->begin, 0, (size_t)(c->end - c->begin));
    }
}

static dvt_status bind_sizes(const program *p, frame *f, dvt_error *error)
{
    dvt_status status = dvt_size_run(p->code, p->code_count, f->symbols, f->sizes);
    if (status != DVT_OK)
        return dvt_fail(error, status, "%s", dvt_status_text(status));
    for (uint32_t i = 0; i < p->guard_count; i++)
        if (f->sizes[p->guards[i].left] != f->sizes[p->guards[i].right])
            return dvt_fail(
                error, DVT_ERROR_GUARD,
                "guard %u does not hold: %lld is not %lld; the sizes of the inputs are "
                "not among those the model was exported for",
                i, (long long)f->sizes[p->guards[i].left],
                (long long)f->sizes[p->guards[i].right]);
    return DVT_OK;
}

/* What the caller and the host get, and copies of what they give. */
static dvt_status charge_call(const dvt_artifact *a, frame *f, dvt_error *error)
{
    const program *p = &a->program;
    uint64_t total = f->bytes;
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < p->buffer_count; i++) {
        uint8_t kind = p->buffers[i].kind;
        bool copied = f->gaps[i] && (kind == KIND_INPUT || kind == KIND_HOST);
        if (kind == KIND_OUTPUT || copied)
            status = dvt_charge_memory(a, &total, f->extents[i],
                                       kind == KIND_OUTPUT ? "outputs" : "copies", error);
    }
    f->call_bytes = total - f->bytes;
    return status;
}

dvt_status dvt_frame_new(dvt_artifact *a, const int64_t *symbols, frame **made,
                         dvt_error *error)
{
    const program *p = &a->program;
    uint64_t bytes;
    frame *f = allocate(p, &bytes);
    if (f == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    f->bytes = bytes;
    f->host_free = a->host_free;
    f->allocator = &a->allocator;
    if (p->symbol_count > 0)
        memcpy(f->symbols, symbols, p->symbol_count * sizeof *symbols);
    dvt_status status = bind_sizes(p, f, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->buffer_count; i++)
        status = shape_buffer(p, f, i, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->buffer_count; i++)
        status = dvt_layout_bind(p, f, i, error);
    if (status == DVT_OK)
        status = charge_call(a, f, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->instruction_count; i++)
        bind_operands(p, f, i);
    if (status == DVT_OK)
        status = dvt_devices_prepare(a, f, error);
    if (status == DVT_OK)
        status = dvt_strands_find(p, f, error);
    if (status == DVT_OK)
        status = dvt_arena_plan(a, f, 0, error);
    for (uint32_t i = 1; status == DVT_OK && f->devices != NULL && i <= p->device_count; i++)
        status = dvt_arena_plan(a, f, i, error);
    if (status == DVT_OK)
        status = dvt_artifact_ready(a, error);
    if (status == DVT_OK)
        bind_fixed(a, f);
    if (status == DVT_OK)
        status = bind_calls(a, f, error);
    if (status == DVT_OK)
        dvt_strands_keep(f);
    if (status == DVT_OK)
        status = dvt_devices_bind(a, f, error);
    if (status != DVT_OK) {
        dvt_frame_free(f);
        return status;
    }
    *made = f;
    return DVT_OK;
}
