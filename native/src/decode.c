/* From sections to a program: every count capped by the bytes that are there, every index
 * checked. What leaves here has indices in range; flow.c then checks what refers to what. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "artifacts are little-endian, and so must the machine be"
#endif

#define SYMBOL_SIZE 32
#define BUFFER_SIZE 48
#define KERNEL_SIZE 24
#define HOST_SIZE   16
#define GUARD_SIZE  8
#define MAX_RECORDS (1u << 24)

/* A section read from front to back. */
typedef struct {
    span left;
    const char *name;
    dvt_error *error;
    bool failed;
} reader;

static dvt_status malformed(reader *r, const char *problem)
{
    r->failed = true;
    return dvt_fail(r->error, DVT_ERROR_MALFORMED, "%s section: %s", r->name, problem);
}

static const uint8_t *take(reader *r, uint64_t bytes)
{
    static const uint8_t nothing[64];
    if (r->failed || bytes > r->left.size) {
        if (!r->failed)
            malformed(r, "ends early");
        return nothing;
    }
    const uint8_t *at = r->left.data;
    r->left.data += bytes;
    r->left.size -= (size_t)bytes;
    return at;
}

static uint32_t word(const uint8_t *p, size_t index)
{
    uint32_t value;
    memcpy(&value, p + 4 * index, sizeof value);
    return value;
}

static int64_t wide(const uint8_t *p)
{
    int64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static reader open_section(const dvt_file *file, int kind, const char *name, dvt_error *error)
{
    reader r = {file->sections[kind], name, error, false};
    if (r.left.data == NULL && kind != DVT_STRINGS)
        r.left = (span){(const uint8_t *)"", 0};
    return r;
}

/* The header of a table: a count, and a second number whose meaning is the table's. */
static uint32_t count_of(reader *r, uint32_t *second)
{
    const uint8_t *head = take(r, 8);
    uint32_t count = word(head, 0);
    *second = word(head, 1);
    if (!r->failed && count > MAX_RECORDS)
        malformed(r, "too many entries");
    return r->failed ? 0 : count;
}

static void *records(reader *r, uint32_t count, size_t size)
{
    void *made = r->failed ? NULL : calloc(count ? count : 1, size);
    if (made == NULL && !r->failed) {
        r->failed = true;
        dvt_fail(r->error, DVT_ERROR_MEMORY, "out of memory");
    }
    return made;
}

static dvt_status finish(reader *r)
{
    if (!r->failed && r->left.size != 0)
        malformed(r, "has bytes left over");
    return r->failed ? r->error->status : DVT_OK;
}

static span text(reader *r, const dvt_file *file, uint32_t offset, uint32_t length)
{
    span strings = file->sections[DVT_STRINGS];
    if (offset > strings.size || length > strings.size - offset) {
        malformed(r, "a name lies outside the strings");
        return (span){NULL, 0};
    }
    return (span){strings.data + offset, length};
}

static dvt_status decode_sizes(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_SIZES, "sizes", error);
    p->symbol_count = count_of(&r, &p->size_count);
    p->code_count = (size_t)wide(take(&r, 8));
    if (!r.failed && (p->size_count > MAX_RECORDS || p->code_count > r.left.size / 16))
        malformed(&r, "too many sizes");
    const uint8_t *at = take(&r, (uint64_t)p->symbol_count * SYMBOL_SIZE);
    p->symbols = records(&r, p->symbol_count, sizeof *p->symbols);
    for (uint32_t i = 0; !r.failed && i < p->symbol_count; i++, at += SYMBOL_SIZE) {
        symbol_record *s = &p->symbols[i];
        s->name = text(&r, file, word(at, 0), word(at, 1));
        s->input = word(at, 2);
        s->axis = word(at, 3);
        s->low = wide(at + 16);
        s->high = wide(at + 24);
        bool negative = s->low < 0 && s->axis != DVT_NONE;
        if (!r.failed && (negative || s->high < s->low))
            malformed(&r, "a symbol has no possible value");
    }
    /* Sections are aligned and symbols are 32 bytes each, so the code is aligned too. */
    p->code =
        (const dvt_size_instruction *)(const void *)take(&r, 16 * (uint64_t)p->code_count);
    if (finish(&r) != DVT_OK)
        return error->status;
    if (dvt_size_verify(p->code, p->code_count, p->symbol_count, p->size_count) != DVT_OK)
        return malformed(&r, "the size program is malformed");
    return DVT_OK;
}

uint32_t dvt_item_size(dvt_dtype dtype)
{
    switch (dtype.code) {
    case DVT_BOOL:
        return dtype.bits == 8 ? 1 : 0;
    case DVT_COMPLEX:
        return dtype.bits == 64 || dtype.bits == 128 ? dtype.bits / 8u : 0;
    case DVT_BFLOAT:
        return dtype.bits == 16 ? 2 : 0;
    case DVT_FLOAT:
        return dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64 ? dtype.bits / 8u : 0;
    case DVT_INT:
    case DVT_UINT:
        return dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64
                   ? dtype.bits / 8u
                   : 0;
    default: /* DLPack's 8-bit floats */
        return dtype.code >= 7 && dtype.code <= 14 && dtype.bits == 8 ? 1 : 0;
    }
}

static void link_buffer(reader *r, program *p, uint32_t index)
{
    buffer_record *b = &p->buffers[index];
    bool based = b->base != DVT_NONE;
    b->root = b->owner = index;
    if (based && b->base >= index) {
        malformed(r, "a buffer is based on a later one");
        return;
    }
    if (!based) {
        if (b->kind == KIND_VIEW)
            malformed(r, "a view of nothing");
        return;
    }
    const buffer_record *base = &p->buffers[b->base];
    b->root = base->root;
    if (b->device != base->device) {
        malformed(r, "a buffer is based on one of another device");
        return;
    }
    if (b->kind == KIND_VIEW) {
        b->owner = base->owner;
        if (b->item != base->item || !dvt_same_dtype(b->dtype, base->dtype) ||
            base->kind == KIND_VIEW)
            malformed(r, "a view of another dtype, or of a view");
    } else if (b->kind != KIND_TEMPORARY || base->kind != KIND_TEMPORARY) {
        malformed(r, "only a temporary takes another temporary's memory");
    }
}

/* Inputs, outputs, state and what host calls make lie on the host. */
static bool place_buffer(const program *p, const uint8_t *at, buffer_record *b)
{
    uint32_t type = word(at, 10), index = word(at, 11);
    if (type == DVT_CPU)
        return index == 0;
    b->device = index + 1;
    return type == DVP_DEVICE_MEMORY && p->table != NULL && index < p->table->device_count &&
           (b->kind == KIND_CONSTANT || b->kind == KIND_TEMPORARY || b->kind == KIND_VIEW);
}

static void decode_buffer(reader *r, const dvt_file *file, program *p, uint32_t index,
                          const uint8_t *at, const uint32_t *dims, uint32_t dim_count)
{
    buffer_record *b = &p->buffers[index];
    b->name = text(r, file, word(at, 0), word(at, 1));
    b->kind = at[8];
    b->dtype = (dvt_dtype){at[9], at[10], 1};
    b->rank = at[11];
    b->item = dvt_item_size(b->dtype);
    b->base = word(at, 3);
    uint32_t dims_at = word(at, 4);
    b->offset = word(at, 5);
    b->data_at = (uint64_t)wide(at + 24);
    b->data_size = (uint64_t)wide(at + 32);
    b->first = b->life_first = DVT_NONE;
    if (!place_buffer(p, at, b)) {
        malformed(r, "a buffer on a device where it cannot be");
        return;
    }
    if (b->kind > KIND_VIEW || b->item == 0 || b->rank > DVT_MAX_RANK || dims_at > dim_count ||
        2u * b->rank > dim_count - dims_at || b->offset >= p->size_count) {
        malformed(r, "a buffer's kind, dtype or dimensions are out of range");
        return;
    }
    b->dims = dims + dims_at;
    span data = file->sections[DVT_CONSTANTS];
    bool held = b->kind == KIND_CONSTANT || b->kind == KIND_STATE;
    if (held && (b->data_at > data.size || b->data_size > data.size - b->data_at ||
                 b->data_at % DVT_ALIGN != 0))
        malformed(r, "a constant lies outside the constants");
    if (!held && (b->data_at != 0 || b->data_size != 0))
        malformed(r, "a buffer has contents but is no constant");
    if (!r->failed)
        link_buffer(r, p, index);
}

static dvt_status decode_buffers(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_BUFFERS, "buffers", error);
    uint32_t dim_count;
    p->buffer_count = count_of(&r, &dim_count);
    const uint8_t *at = take(&r, (uint64_t)p->buffer_count * BUFFER_SIZE);
    const uint32_t *dims = (const uint32_t *)(const void *)take(&r, 4 * (uint64_t)dim_count);
    p->buffers = records(&r, p->buffer_count, sizeof *p->buffers);
    for (uint32_t i = 0; !r.failed && i < dim_count; i++)
        if (dims[i] >= p->size_count)
            malformed(&r, "a dimension is no size");
    for (uint32_t i = 0; !r.failed && i < p->buffer_count; i++, at += BUFFER_SIZE)
        decode_buffer(&r, file, p, i, at, dims, dim_count);
    return finish(&r);
}

static dvt_status decode_guards(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_GUARDS, "guards", error);
    if (r.left.size == 0)
        return DVT_OK;
    uint32_t unused;
    p->guard_count = count_of(&r, &unused);
    const uint8_t *at = take(&r, (uint64_t)p->guard_count * GUARD_SIZE);
    p->guards = records(&r, p->guard_count, sizeof *p->guards);
    for (uint32_t i = 0; !r.failed && i < p->guard_count; i++) {
        p->guards[i] = (guard_record){word(at, 2 * i), word(at, 2 * i + 1)};
        if (p->guards[i].left >= p->size_count || p->guards[i].right >= p->size_count)
            malformed(&r, "a guard compares no size");
    }
    return finish(&r);
}

static dvt_status decode_host_calls(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_HOST_CALLS, "host calls", error);
    if (r.left.size == 0)
        return DVT_OK;
    uint32_t unused;
    p->host_call_count = count_of(&r, &unused);
    const uint8_t *at = take(&r, (uint64_t)p->host_call_count * HOST_SIZE);
    p->host_calls = records(&r, p->host_call_count, sizeof *p->host_calls);
    for (uint32_t i = 0; !r.failed && i < p->host_call_count; i++, at += HOST_SIZE) {
        span op = text(&r, file, word(at, 0), word(at, 1));
        span arguments = text(&r, file, word(at, 2), word(at, 3));
        p->host_calls[i] = (dvt_host_call){.struct_size = sizeof(dvt_host_call),
                                           .op = (const char *)op.data,
                                           .op_length = op.size,
                                           .arguments = (const char *)arguments.data,
                                           .arguments_length = arguments.size};
    }
    return finish(&r);
}

/* How many there are of what an instruction's index counts. */
static uint32_t instruction_limit(const program *p, uint32_t opcode)
{
    if (opcode == OP_KERNEL)
        return p->kernel_count;
    if (opcode == OP_HOST)
        return p->host_call_count;
    if (opcode == OP_LAUNCH)
        return p->table != NULL ? p->table->operation_count : 0;
    if (opcode == OP_BLOB)
        return p->table != NULL ? p->table->blob_count : 0;
    return 1;
}

static void decode_instruction(reader *r, program *p, instruction *in)
{
    const uint8_t *head = take(r, 24);
    in->opcode = word(head, 0);
    in->index = word(head, 1);
    in->output_count = word(head, 2);
    in->input_count = word(head, 3);
    in->attribute_count = word(head, 4);
    if (!r->failed && (word(head, 5) != 0 || in->output_count > 4096 ||
                       in->input_count > 65536 || in->attribute_count > 65536))
        malformed(r, "an instruction has too many operands");
    in->outputs = (const uint32_t *)(const void *)take(r, 4 * (uint64_t)in->output_count);
    in->inputs = (const uint32_t *)(const void *)take(r, 4 * (uint64_t)in->input_count);
    in->attributes = take(r, 16 * (uint64_t)in->attribute_count);
    for (uint32_t i = 0; !r->failed && i < in->attribute_count; i++) {
        uint32_t tag = word(in->attributes + 16 * i, 0),
                 size = word(in->attributes + 16 * i, 1);
        if (tag > TAG_SIZE || size >= (tag == TAG_SIZE ? p->size_count : 1))
            malformed(r, "an attribute is no number");
    }
    in->pointers_at = p->pointer_count;
    in->numbers_at = p->number_count;
    p->pointer_count += in->output_count + in->input_count;
    p->number_count += in->attribute_count;
    uint32_t limit = instruction_limit(p, in->opcode);
    bool copy = in->opcode == OP_COPY;
    if (!r->failed && (in->opcode < OP_KERNEL || in->opcode > OP_LAUNCH || in->index >= limit ||
                       (copy && (in->output_count != 1 || in->input_count != 1 ||
                                 in->attribute_count != 0)) ||
                       (in->opcode == OP_KERNEL && in->output_count == 0)))
        malformed(r, "an instruction is not one that exists");
    bool launches = in->opcode == OP_LAUNCH, optional = in->opcode == OP_HOST || launches;
    if (!r->failed && in->opcode == OP_BLOB) {
        optional = p->table->blobs[in->index].device == 0;
        launches = !optional; /* a device's code may hold the contents of an operand */
    }
    for (uint32_t i = 0; !r->failed && i < in->input_count; i++)
        if (in->inputs[i] >= p->buffer_count && !(in->inputs[i] == DVT_NONE && launches))
            malformed(r, "an operand is no buffer");
    for (uint32_t i = 0; !r->failed && i < in->output_count; i++)
        if (in->outputs[i] >= p->buffer_count && !(in->outputs[i] == DVT_NONE && optional))
            malformed(r, "a result is no buffer");
}

static dvt_status decode_instructions(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_PROGRAM, "program", error);
    p->input_count = count_of(&r, &p->output_count);
    uint32_t unused;
    p->instruction_count = count_of(&r, &unused);
    if (!r.failed && p->instruction_count > r.left.size / 24)
        malformed(&r, "too many instructions");
    p->inputs = (const uint32_t *)(const void *)take(&r, 4 * (uint64_t)p->input_count);
    p->outputs = (const uint32_t *)(const void *)take(&r, 4 * (uint64_t)p->output_count);
    p->instructions = records(&r, p->instruction_count, sizeof *p->instructions);
    for (uint32_t i = 0; !r.failed && i < p->input_count; i++)
        if (p->inputs[i] >= p->buffer_count || p->buffers[p->inputs[i]].kind != KIND_INPUT)
            malformed(&r, "an input is no input buffer");
    for (uint32_t i = 0; !r.failed && i < p->output_count; i++)
        if (p->outputs[i] >= p->buffer_count)
            malformed(&r, "an output is no buffer");
    for (uint32_t i = 0; !r.failed && i < p->instruction_count; i++)
        decode_instruction(&r, p, &p->instructions[i]);
    return finish(&r);
}

static dvt_status count_kernels(const dvt_file *file, program *p, dvt_error *error)
{
    reader r = open_section(file, DVT_KERNELS, "kernels", error);
    if (r.left.size == 0)
        return DVT_OK;
    uint32_t unused;
    p->kernel_count = count_of(&r, &unused);
    take(&r, (uint64_t)p->kernel_count * KERNEL_SIZE);
    p->kernels = records(&r, p->kernel_count, sizeof *p->kernels);
    return finish(&r);
}

dvt_status dvt_program_decode(const dvt_file *file, program *p, dvt_error *error)
{
    dvt_status status = decode_sizes(file, p, error);
    if (status == DVT_OK)
        status = dvt_devices_decode(file, p, error);
    if (status == DVT_OK)
        status = decode_buffers(file, p, error);
    if (status == DVT_OK)
        status = dvt_layouts_decode(file, p, error);
    if (status == DVT_OK)
        status = decode_guards(file, p, error);
    if (status == DVT_OK)
        status = count_kernels(file, p, error);
    if (status == DVT_OK)
        status = decode_host_calls(file, p, error);
    if (status == DVT_OK)
        status = decode_instructions(file, p, error);
    if (status == DVT_OK)
        status = dvt_program_flow(p, error);
    return status;
}

void dvt_program_free(program *p)
{
    free(p->symbols);
    free(p->buffers);
    free(p->guards);
    free(p->instructions);
    free((void *)p->kernels);
    free(p->host_calls);
    free(p->releases);
    dvt_devices_drop(p);
    memset(p, 0, sizeof *p);
}
