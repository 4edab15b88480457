/* What quantised operands stand for, as commands carry it. */
#include "driver.h"

#include <math.h>
#include <string.h>

/* Operators that convert say it with arguments, all others with the parameters of operands. */
bool sim_converts(const dvp_op *op)
{
    return strncmp(op->name, "quantized_decomposed.", 21) == 0;
}

static bool has_parameters(const dvp_op *op)
{
    return op->struct_size >= offsetof(dvp_op, quantization) + sizeof op->quantization &&
           op->quantization != NULL;
}

const dvp_quantization *sim_quantization(const dvp_op *op, uint32_t operand)
{
    return has_parameters(op) ? op->quantization[operand] : NULL;
}

bool sim_is_quantized(const dvp_op *op)
{
    for (uint32_t i = 0; i < op->input_count + op->output_count; i++)
        if (sim_quantization(op, i) != NULL)
            return true;
    return false;
}

/* Only numbers of up to eight bits, biases of 32. */
static bool holds_numbers(const dvp_tensor *t)
{
    bool integer = t->dtype.code == DVP_INT || t->dtype.code == DVP_UINT;
    return integer && (t->dtype.bits == 4 || t->dtype.bits == 8 ||
                       (t->dtype.bits == 32 && t->dtype.code == DVP_INT));
}

static bool fits(const dvp_tensor *t, const dvp_quantization *q)
{
    if (q == NULL)
        return t->ndim < 0 || (t->dtype.code == DVP_FLOAT && t->dtype.bits == 32);
    bool single = q->real.code == DVP_FLOAT && q->real.bits == 32;
    bool usable = q->scales != NULL || (isfinite(q->scale) && q->scale > 0);
    return t->ndim >= 0 && holds_numbers(t) && single && usable && q->least <= q->greatest;
}

/* Of a product on quantised matrices. */
const char *sim_judge_quantized(const dvp_op *op)
{
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!fits(&op->inputs[i], sim_quantization(op, i)) ||
            (i + 2 >= op->input_count && op->inputs[i].ndim != 2))
            return "it takes quantised matrices of up to eight bits, and float32";
    for (uint32_t i = 0; i < op->output_count; i++)
        if (!fits(&op->outputs[i], sim_quantization(op, op->input_count + i)) ||
            op->outputs[i].dtype.bits == 4)
            return "a quantised result has eight bits";
    return NULL;
}

/* Of a conversion: what is quantised has up to eight bits. */
const char *sim_judge_conversion(const dvp_op *op)
{
    bool to_numbers = strncmp(op->name + 21, "quantize", 8) == 0;
    const dvp_tensor *x = op->inputs, *y = op->output_count ? op->outputs : NULL;
    const dvp_tensor *numbers = to_numbers ? y : x, *real = to_numbers ? x : y;
    if ((numbers != NULL && (!holds_numbers(numbers) || numbers->dtype.bits == 4)) ||
        (real != NULL && (real->dtype.code != DVP_FLOAT || real->dtype.bits != 32)))
        return "conversions are between float32 and numbers of up to eight bits";
    for (uint32_t i = 1; i < op->input_count; i++)
        if (op->inputs[i].ndim >= 0 && op->inputs[i].ndim > 2)
            return "scales of more than two dimensions";
    return NULL;
}

/* ---- into a command ---- */

/* A tensor of scales, behind those of the operation: its place, -1 without it. */
static int32_t put_blocks(dvp_device *device, const dvp_tensor *t, sim_command *c,
                          dvp_status *status, dvp_error *error)
{
    uint32_t at = c->outputs + c->inputs + c->scales;
    if (t == NULL || t->ndim < 0 || *status != DVP_OK)
        return -1;
    if (at >= SIM_TENSORS || t->ndim > SIM_RANK) {
        *status = sim_fail(error, DVP_INVALID, "more than %d tensors", SIM_TENSORS);
        return -1;
    }
    c->scales++;
    *status = sim_put_tensor(device, t, false, &c->tensors[at], error);
    return (int32_t)at;
}

static dvp_status put_parameters(dvp_device *device, const dvp_quantization *q, int32_t rank,
                                 sim_command *c, sim_tensor *made, dvp_error *error)
{
    dvp_status status = DVP_OK;
    made->quantized = 1;
    made->scale = q->scale;
    made->zero = q->zero_point;
    made->least = q->least;
    made->greatest = q->greatest;
    for (int32_t d = 0; d < rank; d++)
        made->block[d] = q->block[d];
    made->scales = put_blocks(device, q->scales, c, &status, error);
    made->zeros = put_blocks(device, q->zero_points, c, &status, error);
    return status;
}

static int64_t integer(const dvp_op *op, const char *name, int64_t otherwise)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    return a != NULL && a->kind == DVP_ATTR_INT ? a->value.i : otherwise;
}

/* Scales along one axis, or along both of a matrix, as a tensor of the same rank. */
static dvp_tensor spread(const dvp_tensor *t, int32_t rank, int64_t axis, int64_t *shape,
                         int64_t *strides)
{
    dvp_tensor made = *t;
    for (int32_t d = 0; d < rank; d++) {
        int32_t own = t->ndim == 1 ? (d == axis ? 0 : -1) : d;
        shape[d] = own < 0 || own >= t->ndim ? 1 : t->shape[own];
        strides[d] = own < 0 || own >= t->ndim ? 0 : t->strides[own];
    }
    made.shape = shape;
    made.strides = strides;
    made.ndim = rank;
    return made;
}

static dvp_status put_conversion(dvp_device *device, const dvp_op *op, sim_command *c,
                                 dvp_error *error)
{
    bool to_numbers = strncmp(op->name + 21, "quantize", 8) == 0;
    sim_tensor *numbers = &c->tensors[to_numbers ? 0 : 1];
    int32_t rank = numbers->rank;
    int64_t axis = integer(op, "axis", 0), group = integer(op, "group_size", 0);
    int64_t block[SIM_RANK] = {0}, sizes[4][SIM_RANK] = {{0}};
    const dvp_attribute *scale = sim_attribute_of(op, "scale");
    dvp_tensor held[2];
    dvp_quantization q = {.struct_size = sizeof q,
                          .block = block,
                          .scale = scale == NULL                   ? 0
                                   : scale->kind == DVP_ATTR_FLOAT ? scale->value.f
                                                                   : (double)scale->value.i,
                          .zero_point = integer(op, "zero_point", 0),
                          .least = integer(op, "quant_min", INT64_MIN),
                          .greatest = integer(op, "quant_max", INT64_MAX)};
    axis += axis < 0 ? rank : 0;
    bool channels = op->input_count >= 2 && group == 0 && axis >= 0 && axis < rank;
    bool groups = op->input_count >= 2 && group > 0 && rank == 2;
    if (op->input_count >= 2 && !channels && !groups)
        return sim_fail(error, DVP_INVALID, "an axis or a group that is not there");
    if (channels)
        block[axis] = 1;
    if (groups) {
        block[0] = 1;
        block[1] = group < numbers->shape[1] ? group : numbers->shape[1];
    }
    for (uint32_t i = 0; i < 2 && i + 1 < op->input_count; i++) {
        const dvp_tensor *t = &op->inputs[i + 1];
        if (t->ndim < 0)
            continue;
        held[i] = spread(t, rank, axis, sizes[2 * i], sizes[2 * i + 1]);
        *(i == 0 ? &q.scales : &q.zero_points) = &held[i];
    }
    c->inputs = 1;
    return put_parameters(device, &q, rank, c, numbers, error);
}

dvp_status sim_put_parameters(dvp_device *device, const dvp_op *op, sim_command *c,
                              dvp_error *error)
{
    if (sim_converts(op))
        return put_conversion(device, op, c, error);
    dvp_status status = DVP_OK;
    for (uint32_t i = 0; i < op->input_count + op->output_count && status == DVP_OK; i++) {
        const dvp_quantization *q = sim_quantization(op, i);
        bool input = i < op->input_count;
        sim_tensor *t = &c->tensors[input ? c->outputs + i : i - op->input_count];
        if (q != NULL)
            status = put_parameters(device, q, t->rank, c, t, error);
    }
    return status;
}
