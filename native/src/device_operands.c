/* Operands of launches that are more than their buffers say: quantised tensors with their
 * scales, elements of four bits, and constants in a layout of the device's own. */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_SIZE     16
#define LAUNCH_SIZE   16
#define OPERAND_SIZE  64
#define MAX_RECORDS   (1u << 24)
#define MOST_BLOCK    (INT64_C(1) << 31)
#define MOST_ELEMENTS (UINT64_C(1) << 52)

enum { QUANTIZED = 1, DESCRIBED = 2, PREPARED = 4 };

typedef struct device_table device_table;

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

/* ---- reading ---- */

static dvt_status malformed(dvt_error *error, const char *problem)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "operands section: %s", problem);
}

static const char *read_launches(device_table *t, const uint8_t *at, uint32_t count)
{
    uint32_t operands = 0;
    for (uint32_t i = 0, least = 0; i < count; i++, at += LAUNCH_SIZE) {
        uint32_t index = word(at, 0);
        if (index < least || index >= t->operation_count || word(at, 3) != 0)
            return "a launch is out of order";
        operation_record *o = &t->operations[index];
        *o = (operation_record){o->device,   o->op,          o->kernel,         o->least,
                                o->greatest, o->argument_at, o->argument_count, word(at, 1),
                                operands,    word(at, 2)};
        if (o->operand_count > t->operand_count - operands)
            return "a launch has more operands than are listed";
        operands += o->operand_count;
        least = index + 1;
    }
    return operands == t->operand_count ? NULL : "an operand is no launch's";
}

static bool is_integer(dvt_dtype d)
{
    return d.code == DVP_INT || d.code == DVP_UINT;
}

static bool is_float(dvt_dtype d)
{
    return (d.code == DVP_FLOAT && (d.bits == 16 || d.bits == 32 || d.bits == 64)) ||
           (d.code == DVP_BFLOAT && d.bits == 16);
}

/* Of a quantised operand, as far as it can be told without its buffer. */
static const char *judge_parameters(const operand_record *o)
{
    bool several = false;
    for (uint32_t d = 0; d < o->rank; d++) {
        if (o->block[d] < 0 || o->block[d] >= MOST_BLOCK)
            return "a block of no possible size";
        several = several || o->block[d] > 0;
    }
    if (!is_float(o->real))
        return "quantised numbers stand for what is no floating-point type";
    if (o->scales == DVT_NONE && (!isfinite(o->scale) || o->scale <= 0))
        return "a scale that is no number above 0";
    if (o->scales == DVT_NONE && several)
        return "one scale for several blocks";
    bool zero_fits =
        o->zero_point == 0 || (o->zero_point >= o->least && o->zero_point <= o->greatest);
    if (o->least > o->greatest || o->zero_point < INT32_MIN || o->zero_point > INT32_MAX ||
        (o->zeros == DVT_NONE && !zero_fits))
        return "quantised numbers of no possible range";
    return NULL;
}

/* The elements of a described tensor reach so many bits into it; false: further than anything
 * can, or they cannot be counted. */
static bool reach(const operand_record *o, uint64_t *bits)
{
    uint64_t elements;
    dvt_tensor described = {.ndim = (int32_t)o->rank,
                            .shape = (int64_t *)(uintptr_t)o->shape,
                            .strides = (int64_t *)(uintptr_t)o->strides};
    for (uint32_t d = 0; d < o->rank; d++)
        if (o->shape[d] < 0 || o->strides[d] < 0)
            return false;
    if (!dvt_reach(&described, &elements) || elements > MOST_ELEMENTS)
        return false;
    *bits = elements * o->dtype.bits;
    return true;
}

/* A type that operands may be described with: those of buffers, and integers of four bits. */
static bool is_type(dvt_dtype d)
{
    return dvt_item_size(d) > 0 || (is_integer(d) && d.bits == 4);
}

static const char *read_operand(const uint8_t *at, const uint8_t *numbers,
                                uint32_t number_count, uint32_t *used, operand_record *o)
{
    uint32_t flags = word(at, 1);
    *o = (operand_record){.place = word(at, 0),
                          .quantized = flags & QUANTIZED,
                          .described = flags & DESCRIBED,
                          .prepared = flags & PREPARED,
                          .dtype = {at[8], at[9], 1},
                          .rank = at[10],
                          .real = {at[12], at[13], 1},
                          .scales = word(at, 4),
                          .zeros = word(at, 5),
                          .zero_point = wide(at + 32),
                          .least = wide(at + 40),
                          .greatest = wide(at + 48)};
    memcpy(&o->scale, at + 24, sizeof o->scale);
    if (flags == 0 || flags > (QUANTIZED | DESCRIBED | PREPARED) ||
        (o->prepared && !o->described) || at[11] != 0 || at[14] != 0 || at[15] != 0 ||
        word(at, 15) != 0 || o->rank > DVT_MAX_RANK)
        return "an operand is of no kind that exists";
    uint32_t wanted = o->rank * ((o->quantized ? 1u : 0u) + (o->described ? 2u : 0u));
    if (word(at, 14) != *used || wanted > number_count - *used)
        return "an operand's numbers are not its own";
    const int64_t *from = (const int64_t *)(const void *)(numbers + 8 * (size_t)*used);
    *used += wanted;
    o->block = from;
    o->shape = from + (o->quantized ? o->rank : 0);
    o->strides = o->shape + o->rank;
    uint64_t bits;
    if (o->described && !is_type(o->dtype))
        return "an operand is described with a type that there is not";
    if (o->described && !reach(o, &bits))
        return "an operand is described with sizes that nothing has";
    return o->quantized ? judge_parameters(o) : NULL;
}

dvt_status dvt_operands_decode(const dvt_file *file, device_table *t, dvt_error *error)
{
    span s = file->sections[DVT_OPERANDS];
    if (s.data == NULL)
        return DVT_OK;
    if (s.size < HEAD_SIZE)
        return malformed(error, "ends early");
    uint32_t launches = word(s.data, 0), numbers = word(s.data, 2), used = 0;
    t->operand_count = word(s.data, 1);
    uint64_t rows =
        (uint64_t)launches * LAUNCH_SIZE + (uint64_t)t->operand_count * OPERAND_SIZE;
    if (t->operand_count > MAX_RECORDS || word(s.data, 3) != 0 ||
        s.size - HEAD_SIZE != rows + (uint64_t)numbers * 8)
        return malformed(error, "its tables do not fill it");
    t->operands = calloc(t->operand_count + 1u, sizeof *t->operands);
    if (t->operands == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    const uint8_t *at = s.data + HEAD_SIZE;
    const char *problem = read_launches(t, at, launches);
    at += (size_t)launches * LAUNCH_SIZE;
    for (uint32_t i = 0; problem == NULL && i < t->operand_count; i++, at += OPERAND_SIZE)
        problem = read_operand(at, s.data + HEAD_SIZE + rows, numbers, &used, &t->operands[i]);
    if (problem == NULL && used != numbers)
        problem = "a number is no operand's";
    return problem == NULL ? DVT_OK : malformed(error, problem);
}

/* ---- against the instruction and its buffers ---- */

static const operand_record *find(const device_table *t, const operation_record *o,
                                  uint32_t place)
{
    for (uint32_t i = 0; i < o->operand_count; i++)
        if (t->operands[o->operand_at + i].place == place)
            return &t->operands[o->operand_at + i];
    return NULL;
}

/* Scales lie behind the operation's own inputs, described with the rank of what they are of. */
static const char *check_blocks(const device_table *t, const operation_record *op,
                                const operand_record *o, const instruction *in, uint32_t place,
                                bool zeros)
{
    if (place == DVT_NONE)
        return NULL;
    const operand_record *held =
        place >= in->input_count - op->hidden && place < in->input_count ? find(t, op, place)
                                                                         : NULL;
    if (held == NULL || !held->described || held->quantized || held->prepared ||
        held->rank != o->rank)
        return "has scales that are none";
    if (zeros ? !is_integer(held->dtype) || held->dtype.bits < 32
              : held->dtype.code != DVP_FLOAT || held->dtype.bits < 32)
        return "has scales or zero points of another type";
    return NULL;
}

static const char *check_operand(const program *p, const operation_record *op,
                                 const operand_record *o, const instruction *in)
{
    bool input = o->place < in->input_count;
    uint32_t at = input ? in->inputs[o->place] : in->outputs[o->place - in->input_count];
    if (at == DVT_NONE)
        return "describes an operand that is not there";
    const buffer_record *b = &p->buffers[at];
    dvt_dtype dtype = o->described ? o->dtype : b->dtype;
    if (o->described && (!input || b->kind == KIND_VIEW))
        return "describes an operand that is a result, or a view";
    if (o->prepared && b->kind != KIND_CONSTANT)
        return "has a layout of the device's own for what is no constant";
    if (!o->described && o->rank != b->rank)
        return "has a quantised operand of another rank than its buffer";
    if (!o->quantized)
        return NULL;
    if (!is_integer(dtype) || dtype.bits > 32)
        return "has quantised numbers of no integer type";
    int64_t low = dtype.code == DVP_UINT ? 0 : -(INT64_C(1) << (dtype.bits - 1));
    if (o->least < low || o->greatest >= low + (INT64_C(1) << dtype.bits))
        return "has quantised numbers beyond their type";
    const char *problem = check_blocks(p->table, op, o, in, o->scales, false);
    return problem != NULL ? problem : check_blocks(p->table, op, o, in, o->zeros, true);
}

const char *dvt_operands_check(const program *p, const instruction *in)
{
    const device_table *t = p->table;
    const operation_record *op = &t->operations[in->index];
    uint64_t count = (uint64_t)in->input_count + in->output_count;
    if (op->hidden > in->input_count)
        return "has more scales than inputs";
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const operand_record *o = &t->operands[op->operand_at + i];
        if (o->place >= count || (i > 0 && o->place <= o[-1].place))
            return "has operands out of order";
        bool hidden = o->place < in->input_count && o->place >= in->input_count - op->hidden;
        if (hidden && (!o->described || o->quantized || o->prepared))
            return "has scales that are none";
        const char *problem = check_operand(p, op, o, in);
        if (problem != NULL)
            return problem;
    }
    for (uint32_t i = in->input_count - op->hidden; i < in->input_count; i++)
        if (find(t, op, i) == NULL)
            return "has scales that are not described";
    return NULL;
}

/* ---- once sizes are known ---- */

/* There is a scale for every block of a tensor. */
static bool has_blocks(const dvp_tensor *t, const dvp_quantization *q, const dvp_tensor *blocks)
{
    for (int32_t d = 0; d < t->ndim; d++) {
        int64_t count = q->block[d] > 0 ? t->shape[d] / q->block[d] : 1;
        if ((q->block[d] > 0 && t->shape[d] % q->block[d] != 0) ||
            (blocks != NULL && blocks->shape[d] != count))
            return false;
    }
    return true;
}

static const char *describe_operand(const frame *f, const launch *l, const operand_record *o)
{
    if (!o->described)
        return NULL;
    dvp_tensor *t = f->devices->tensors + l->in->pointers_at + l->in->output_count + o->place;
    uint64_t bits = 0;
    reach(o, &bits);
    if (!o->prepared && (bits + 7) / 8 > f->extents[l->in->inputs[o->place]])
        return "an operand is described beyond its buffer";
    t->dtype = (dvp_dtype){o->dtype.code, o->dtype.bits, 1};
    t->ndim = (int32_t)o->rank;
    t->shape = (int64_t *)(uintptr_t)o->shape;
    t->strides = (int64_t *)(uintptr_t)o->strides;
    return NULL;
}

static const char *quantize_operand(const launch *l, const operand_record *o,
                                    dvp_tensor *tensors, dvp_quantization *made)
{
    const instruction *in = l->in;
    dvp_tensor *inputs = tensors + in->output_count;
    const dvp_tensor *t =
        o->place < in->input_count ? &inputs[o->place] : &tensors[o->place - in->input_count];
    *made = (dvp_quantization){.struct_size = sizeof *made,
                               .real = {o->real.code, o->real.bits, 1},
                               .block = o->block,
                               .scale = o->scale,
                               .zero_point = o->zero_point,
                               .least = o->least,
                               .greatest = o->greatest,
                               .scales = o->scales == DVT_NONE ? NULL : &inputs[o->scales],
                               .zero_points = o->zeros == DVT_NONE ? NULL : &inputs[o->zeros]};
    return has_blocks(t, made, made->scales) && has_blocks(t, made, made->zero_points)
               ? NULL
               : "an operand has not a scale for each of its blocks";
}

dvt_status dvt_operands_describe(const dvt_artifact *a, frame *f, launch *l, dvt_error *error)
{
    const device_table *t = a->program.table;
    const operation_record *op = &t->operations[l->in->index];
    struct device_frame *d = f->devices;
    dvp_tensor *tensors = d->tensors + l->in->pointers_at;
    const dvp_quantization **quantization = d->quantized + l->in->pointers_at;
    uint8_t *flags = d->flags + l->in->pointers_at;
    const char *problem = NULL;
    if (op->operand_count == 0)
        return DVT_OK;
    const plugin *p = a->devices[l->in->device - 1].plugin;
    bool knows = p->info.flags & DVP_QUANTIZED_OPERATIONS;
    for (uint32_t i = 0; i < op->operand_count && !knows; i++)
        if (t->operands[op->operand_at + i].quantized)
            return dvt_fail(
                error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
                "the plug-in '%.60s' (version '%.40s') does not compute with "
                "quantised tensors, and the artifact has %.100s on such: export the "
                "model for this plug-in",
                p->info.name, p->info.version, op->op);
    l->op.input_count = l->in->input_count - op->hidden;
    for (uint32_t i = 0; problem == NULL && i < op->operand_count; i++) {
        const operand_record *o = &t->operands[op->operand_at + i];
        bool input = o->place < l->in->input_count;
        problem = describe_operand(f, l, o);
        if (o->prepared)
            flags[o->place] = DVP_OPERAND_CONSTANT | DVP_OPERAND_PREPARED;
        uint32_t own = input ? o->place : o->place - op->hidden;
        if (o->quantized)
            quantization[own] = &d->quantizations[op->operand_at + i];
    }
    for (uint32_t i = 0; problem == NULL && i < op->operand_count; i++)
        if (t->operands[op->operand_at + i].quantized)
            problem = quantize_operand(l, &t->operands[op->operand_at + i], tensors,
                                       &d->quantizations[op->operand_at + i]);
    l->op.quantization = quantization;
    l->op.input_flags = flags;
    return problem == NULL ? DVT_OK
                           : dvt_fail(error, DVT_ERROR_GUARD, "%s of %.100s", problem, op->op);
}

/* The plug-in judges what a file says is its own layout; its lock is held. */
dvt_status dvt_operands_accept(dvt_artifact *a, plugin *p, const launch *l, dvt_error *error)
{
    device_table *t = a->program.table;
    const operation_record *op = &t->operations[l->in->index];
    for (uint32_t i = 0; i < op->operand_count; i++) {
        operand_record *o = &t->operands[op->operand_at + i];
        if (!o->prepared || o->accepted)
            continue;
        const buffer_record *b = &a->program.buffers[l->in->inputs[o->place]];
        plugin_error problem = {0};
        if (plugin_accept(p, &l->op, o->place,
                          a->file.sections[DVT_CONSTANTS].data + b->data_at, b->data_size,
                          &problem) != 0)
            return dvt_plugin_failed(&problem, error);
        o->accepted = true;
    }
    return DVT_OK;
}
