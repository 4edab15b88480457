/* Size programs: see dovetail.h. */
#include "dovetail.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

const char *dvt_status_text(dvt_status status)
{
    switch (status) {
    case DVT_OK:
        return "ok";
    case DVT_ERROR_MALFORMED:
        return "the size program is malformed";
    case DVT_ERROR_OVERFLOW:
        return "a size does not fit 64 bits";
    case DVT_ERROR_DIVIDE_BY_ZERO:
        return "a size is divided by zero";
    case DVT_ERROR_IO:
        return "a file cannot be read";
    case DVT_ERROR_UNSUPPORTED:
        return "not for this version, machine or process";
    case DVT_ERROR_GUARD:
        return "not the inputs that the program was made for";
    case DVT_ERROR_MEMORY:
        return "out of memory";
    case DVT_ERROR_UNTRUSTED:
        return "native code that is not trusted";
    case DVT_ERROR_CHANGED:
        return "the file was changed after it was opened";
    case DVT_ERROR_CANCELLED:
        return "the run was stopped";
    case DVT_ERROR_LIMIT:
        return "more work or memory than the file may take";
    case DVT_ERROR_DIVISOR:
        return "an integer was divided by zero";
    case DVT_ERROR_INDEX:
        return "an index is out of range";
    case DVT_ERROR_HOST:
        return "a host operation failed";
    case DVT_ERROR_ARGUMENT:
        return "wrong arguments";
    case DVT_ERROR_PLUGIN_MISSING:
        return "a plug-in is missing";
    case DVT_ERROR_PLUGIN_INVALID:
        return "no plug-in, or one that breaks the rules";
    case DVT_ERROR_PLUGIN_INCOMPATIBLE:
        return "a plug-in that does not serve";
    case DVT_ERROR_PLUGIN_FAILED:
        return "a plug-in failed";
    case DVT_ERROR_DEVICE_LOST:
        return "a device is lost";
    case DVT_ERROR_NOT_YET:
        return "not done within the time that was given";
    default:
        return "unknown status";
    }
}

static bool in_range(int64_t index, size_t count)
{
    return index >= 0 && (uint64_t)index < count;
}

/* How many numbers an operation takes; 0: it is none. */
static size_t operands_of(int64_t opcode)
{
    if (opcode == DVT_SIZE_REAL || (opcode >= DVT_SIZE_REAL_SQRT && opcode <= DVT_SIZE_ROUND))
        return 1;
    const bool whole = opcode >= DVT_SIZE_ADD && opcode <= DVT_SIZE_MIN;
    return whole || (opcode >= DVT_SIZE_REAL_ADD && opcode <= DVT_SIZE_REAL_MIN) ? 2 : 0;
}

dvt_status dvt_size_verify(const dvt_size_instruction *code, size_t count, size_t symbol_count,
                           size_t output_count)
{
    size_t depth = 0, stored = 0;
    for (size_t i = 0; i < count; i++) {
        const int64_t operand = code[i].operand;
        switch (code[i].opcode) {
        case DVT_SIZE_LOAD:
            if (!in_range(operand, symbol_count))
                return DVT_ERROR_MALFORMED;
            depth++;
            break;
        case DVT_SIZE_PUSH:
            depth++;
            break;
        case DVT_SIZE_STORE:
            /* Outputs are stored in order, so each is stored exactly once. */
            if (depth < 1 || operand != (int64_t)stored || stored >= output_count)
                return DVT_ERROR_MALFORMED;
            stored++;
            depth--;
            break;
        default: {
            const size_t taken = operands_of(code[i].opcode);
            if (taken == 0 || depth < taken)
                return DVT_ERROR_MALFORMED;
            depth -= taken - 1;
        }
        }
        if (depth > DVT_SIZE_STACK)
            return DVT_ERROR_MALFORMED;
    }
    return depth == 0 && stored == output_count ? DVT_OK : DVT_ERROR_MALFORMED;
}

static dvt_status divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == 0)
        return DVT_ERROR_DIVIDE_BY_ZERO;
    if (b == -1) { /* INT64_MIN / -1 overflows; INT64_MIN % -1 traps on x86 */
        *rest = 0;
        return __builtin_sub_overflow((int64_t)0, a, quotient) ? DVT_ERROR_OVERFLOW : DVT_OK;
    }
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return DVT_OK;
}

static double real_of(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static dvt_status real(double value, int64_t *result)
{
    memcpy(result, &value, sizeof value);
    return DVT_OK;
}

/* Python raises where a power of finite numbers is none. */
static dvt_status power(double a, double b, int64_t *result)
{
    const double value = pow(a, b);
    if (!isfinite(value) && isfinite(a) && isfinite(b))
        return a == 0 ? DVT_ERROR_DIVIDE_BY_ZERO : DVT_ERROR_OVERFLOW;
    return real(value, result);
}

static dvt_status apply_real(int64_t opcode, double a, double b, int64_t *result)
{
    switch (opcode) {
    case DVT_SIZE_REAL_ADD:
        return real(a + b, result);
    case DVT_SIZE_REAL_SUB:
        return real(a - b, result);
    case DVT_SIZE_REAL_MUL:
        return real(a * b, result);
    case DVT_SIZE_REAL_DIV:
        return b == 0 ? DVT_ERROR_DIVIDE_BY_ZERO : real(a / b, result);
    case DVT_SIZE_REAL_POW:
        return power(a, b, result);
    case DVT_SIZE_REAL_MAX: /* the first of equals, as Python */
        return real(b > a ? b : a, result);
    default: /* DVT_SIZE_REAL_MIN */
        return real(b < a ? b : a, result);
    }
}

static dvt_status whole(double value, int64_t *result)
{
    if (!(value >= -0x1p63 && value < 0x1p63)) /* a NaN too */
        return DVT_ERROR_OVERFLOW;
    *result = (int64_t)value;
    return DVT_OK;
}

static dvt_status convert(int64_t opcode, int64_t a, int64_t *result)
{
    const double value = real_of(a);
    switch (opcode) {
    case DVT_SIZE_REAL:
        return real((double)a, result);
    case DVT_SIZE_REAL_SQRT:
        return value < 0 ? DVT_ERROR_OVERFLOW : real(sqrt(value), result);
    case DVT_SIZE_FLOOR:
        return whole(floor(value), result);
    case DVT_SIZE_CEIL:
        return whole(ceil(value), result);
    case DVT_SIZE_TRUNC:
        return whole(trunc(value), result);
    default: /* DVT_SIZE_ROUND */
        return whole(rint(value), result);
    }
}

static dvt_status apply(int64_t opcode, int64_t a, int64_t b, int64_t *result)
{
    int64_t unused;
    switch (opcode) {
    case DVT_SIZE_ADD:
        return __builtin_add_overflow(a, b, result) ? DVT_ERROR_OVERFLOW : DVT_OK;
    case DVT_SIZE_SUB:
        return __builtin_sub_overflow(a, b, result) ? DVT_ERROR_OVERFLOW : DVT_OK;
    case DVT_SIZE_MUL:
        return __builtin_mul_overflow(a, b, result) ? DVT_ERROR_OVERFLOW : DVT_OK;
    case DVT_SIZE_FLOORDIV:
        return divide(a, b, result, &unused);
    case DVT_SIZE_MOD:
        if (b == -1) { /* no overflow here: the rest is 0 whatever the quotient */
            *result = 0;
            return DVT_OK;
        }
        return divide(a, b, &unused, result);
    case DVT_SIZE_MAX:
        *result = a > b ? a : b;
        return DVT_OK;
    case DVT_SIZE_MIN:
        *result = a < b ? a : b;
        return DVT_OK;
    default: /* the verifier lets nothing else through */
        return apply_real(opcode, real_of(a), real_of(b), result);
    }
}

dvt_status dvt_size_run(const dvt_size_instruction *code, size_t count, const int64_t *symbols,
                        int64_t *outputs)
{
    int64_t stack[DVT_SIZE_STACK + 1];
    size_t depth = 0;
    for (size_t i = 0; i < count; i++) {
        const int64_t operand = code[i].operand;
        switch (code[i].opcode) {
        case DVT_SIZE_PUSH:
            stack[depth++] = operand;
            break;
        case DVT_SIZE_LOAD:
            stack[depth++] = symbols[operand];
            break;
        case DVT_SIZE_STORE:
            outputs[operand] = stack[--depth];
            break;
        default: {
            const size_t taken = operands_of(code[i].opcode);
            int64_t *first = &stack[depth - taken];
            dvt_status status = taken == 1 ? convert(code[i].opcode, *first, first)
                                           : apply(code[i].opcode, first[0], first[1], first);
            if (status != DVT_OK)
                return status;
            depth -= taken - 1;
        }
        }
    }
    return DVT_OK;
}
