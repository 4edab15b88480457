/* Kernels on single elements, and reductions. They compute in double precision. */
#include "device.h"

#include <math.h>
#include <string.h>

static double gelu(double x, bool by_tanh)
{
    if (by_tanh)
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return 0.5 * x * (1 + erf(x * 0.7071067811865476));
}

static double apply(int32_t variant, double x, bool by_tanh)
{
    switch (variant) {
    case SIM_RELU:
        return x < 0 ? 0 : x; /* NaN stays */
    case SIM_NEG:
        return -x;
    case SIM_EXP:
        return exp(x);
    case SIM_LOG:
        return log(x);
    case SIM_TANH:
        return tanh(x);
    case SIM_SIGMOID:
        return 1 / (1 + exp(-x));
    case SIM_SQRT:
        return sqrt(x);
    case SIM_RSQRT:
        return 1 / sqrt(x);
    case SIM_ABS:
        return fabs(x);
    case SIM_ERF:
        return erf(x);
    case SIM_GELU:
        return gelu(x, by_tanh);
    case SIM_SILU:
        return x / (1 + exp(-x));
    case SIM_RECIPROCAL:
        return 1 / x;
    case SIM_SIN:
        return sin(x);
    default:
        return cos(x);
    }
}

const char *sim_run_unary(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *x = sim_input(c, 0);
    if (!sim_same_shape(x, y))
        return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++)
        sim_store(y, memory, sim_offset(n, y->rank, y->shape, y),
                  apply(c->variant, sim_load(x, memory, sim_offset(n, y->rank, y->shape, x)),
                        c->ints[0] != 0));
    return NULL;
}

static double combine(int32_t variant, double a, double b, double alpha)
{
    switch (variant) {
    case SIM_ADD:
        return a + alpha * b;
    case SIM_SUB:
        return a - alpha * b;
    case SIM_MUL:
        return a * b;
    case SIM_DIV:
        return a / b;
    case SIM_POW:
        return pow(a, b);
    case SIM_MAX:
        return isnan(a) || a > b ? a : b;
    default:
        return isnan(a) || a < b ? a : b;
    }
}

static bool holds(int32_t variant, double a, double b)
{
    switch (variant) {
    case SIM_EQ:
        return a == b;
    case SIM_NE:
        return a != b;
    case SIM_LT:
        return a < b;
    case SIM_LE:
        return a <= b;
    case SIM_GT:
        return a > b;
    default:
        return a >= b;
    }
}

/* Operands that are tensors or, where ints[0] says so, the number floats[0]. */
static const char *two_operands(const sim_command *c, unsigned char *memory, bool compares)
{
    const sim_tensor *y = c->tensors;
    for (uint32_t i = 0; i < c->inputs; i++)
        if (!sim_broadcasts(sim_input(c, i), y))
            return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        double operand[2];
        for (uint32_t side = 0, taken = 0; side < 2; side++) {
            if (c->ints[0] == (int64_t)side + 1) {
                operand[side] = c->floats[0];
                continue;
            }
            const sim_tensor *t = sim_input(c, taken++);
            operand[side] = sim_load(t, memory, sim_offset(n, y->rank, y->shape, t));
        }
        double value = compares ? holds(c->variant, operand[0], operand[1])
                                : combine(c->variant, operand[0], operand[1], c->floats[1]);
        sim_store(y, memory, sim_offset(n, y->rank, y->shape, y), value);
    }
    return NULL;
}

const char *sim_run_binary(const sim_command *c, unsigned char *memory)
{
    return two_operands(c, memory, false);
}

const char *sim_run_compare(const sim_command *c, unsigned char *memory)
{
    return two_operands(c, memory, true);
}

const char *sim_run_where(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors;
    for (uint32_t i = 0; i < 3; i++)
        if (!sim_broadcasts(sim_input(c, i), y))
            return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        const sim_tensor *choice = sim_input(c, 0);
        bool first = sim_load(choice, memory, sim_offset(n, y->rank, y->shape, choice)) != 0;
        const sim_tensor *from = sim_input(c, first ? 1 : 2);
        sim_store(y, memory, sim_offset(n, y->rank, y->shape, y),
                  sim_load(from, memory, sim_offset(n, y->rank, y->shape, from)));
    }
    return NULL;
}

const char *sim_run_fill(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors;
    for (int64_t n = 0, count = sim_count(y); n < count; n++)
        sim_store(y, memory, sim_offset(n, y->rank, y->shape, y), c->floats[0]);
    return NULL;
}

/* To another layout, type or shape: the elements keep their order. */
const char *sim_run_copy(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *x = sim_input(c, 0);
    if (sim_count(x) != sim_count(y))
        return SIM_MISFIT;
    bool same = x->code == y->code && x->bits == y->bits;
    uint64_t item = y->bits / 8u;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        int64_t to = sim_offset(n, y->rank, y->shape, y);
        int64_t from = sim_offset(n, x->rank, x->shape, x);
        if (same)
            memcpy(memory + y->address + (uint64_t)to * item,
                   memory + x->address + (uint64_t)from * item, item);
        else
            sim_store(y, memory, to, sim_load(x, memory, from));
    }
    return NULL;
}

/* ---- reductions: ints[0] has a bit for each dimension that goes, ints[1] whether it stays 1
 * ----
 */

const char *sim_run_reduce(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    sim_tensor kept = *x, gone = *x; /* the same elements, as two loops */
    int32_t left = 0;
    for (int32_t i = 0; i < x->rank; i++) {
        bool goes = c->ints[0] >> i & 1;
        (goes ? &kept : &gone)->shape[i] = 1;
        if (goes && !c->ints[1])
            continue;
        if (left >= y->rank || y->shape[left++] != (goes ? 1 : x->shape[i]))
            return SIM_MISFIT;
    }
    if (left != y->rank)
        return SIM_MISFIT;
    int64_t size = sim_count(&gone);
    for (int64_t n = 0, count = sim_count(&kept); n < count; n++) {
        int64_t start = sim_offset(n, x->rank, kept.shape, &kept);
        double sum = 0, most = -INFINITY;
        for (int64_t k = 0; k < size; k++) {
            double value =
                sim_load(x, memory, start + sim_offset(k, x->rank, gone.shape, &gone));
            sum += value;
            most = value > most || isnan(value) ? value : most;
        }
        sim_store(y, memory, sim_offset(n, y->rank, y->shape, y),
                  c->variant == SIM_AMAX   ? most
                  : c->variant == SIM_MEAN ? sum / (double)size
                                           : sum);
    }
    return NULL;
}
