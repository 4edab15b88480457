/* What operands the operations and reductions of kernel IR take, and what constants its types
 * hold.
 */
#include "kernel_ir.h"

bool dvt_is_float(type_id t)
{
    return t == T_F32 || t == T_F64;
}

static bool is_integer(type_id t)
{
    return t >= T_I64 && t <= T_U8;
}

type_id dvt_computed(type_id storage)
{
    static const uint8_t types[] = {
#define X(number, name, code, bits, computed, least, most) [number] = T_##computed,
        KERNEL_TYPES(X)
#undef X
    };
    return (type_id)types[storage];
}

static const uint8_t arities[] = {
#define X(number, name, arity, rule) [number] = arity,
    KERNEL_OPERATIONS(X)
#undef X
};
static const uint8_t rules[] = {
#define X(number, name, arity, rule) [number] = RULE_##rule,
    KERNEL_OPERATIONS(X)
#undef X
};
static const uint8_t reduction_arities[] = {
#define X(number, name, arity, rule) [number] = arity,
    KERNEL_REDUCTIONS(X)
#undef X
};
static const uint8_t reduction_rules[] = {
#define X(number, name, arity, rule) [number] = REDUCES_TO_##rule,
    KERNEL_REDUCTIONS(X)
#undef X
};
const int64_t dvt_least[] = {
#define X(number, name, code, bits, computed, least, most) [number] = least,
    KERNEL_TYPES(X)
#undef X
};
const int64_t dvt_most[] = {
#define X(number, name, code, bits, computed, least, most) [number] = most,
    KERNEL_TYPES(X)
#undef X
};

static bool one_type(const type_id *given, uint8_t count, type_id result)
{
    for (uint8_t i = 0; i < count; i++)
        if (given[i] != result)
            return false;
    return true;
}

static bool admits(uint8_t op, const type_id *given, type_id result)
{
    bool same = one_type(given, arities[op], result);
    switch ((rule_id)rules[op]) {
    case RULE_FLOAT:
        return same && dvt_is_float(result);
    case RULE_NUMBER:
        return same && result != T_BOOL;
    case RULE_ANY:
        return same;
    case RULE_INTEGER:
        return same && is_integer(result);
    case RULE_BITS:
        return same && !dvt_is_float(result);
    case RULE_SINGLE:
        return same && result == T_F32;
    case RULE_CAST:
        return true;
    case RULE_TEST:
        return dvt_is_float(given[0]) && result == T_BOOL;
    case RULE_COMPARE:
        return given[0] == given[1] && result == T_BOOL;
    case RULE_SELECT:
        return given[0] == T_BOOL && given[1] == result && given[2] == result;
    case RULE_BITS_OF:
        return given[0] == T_I64 && result == T_F64;
    case RULE_CHECK:
        return given[0] == T_I64 && given[1] == T_I64 && given[2] == T_BOOL && result == T_I64;
    }
    return false;
}

static bool reduces(uint8_t op, const type_id *given, type_id result)
{
    switch ((reduction_rule)reduction_rules[op]) {
    case REDUCES_TO_NUMBER:
        return result != T_BOOL;
    case REDUCES_TO_ANY:
        return true;
    case REDUCES_TO_BOOL:
        return result == T_BOOL;
    case REDUCES_TO_POSITION:
        return given[1] == T_I64 && result == T_I64;
    }
    return false;
}

uint8_t dvt_arity(uint8_t op, bool is_reduction)
{
    return is_reduction ? reduction_arities[op] : arities[op];
}

bool dvt_admits(uint8_t op, bool is_reduction, const type_id *given, type_id result)
{
    return is_reduction ? reduces(op, given, result) : admits(op, given, result);
}

bool dvt_holds(type_id type, int64_t number)
{
    return number >= dvt_least[type] && number <= dvt_most[type];
}
