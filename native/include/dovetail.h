/* dovetail.h: the C interface of the dovetail runtime.
 *
 * C11, libc only. Every function returns a dvt_status; nothing aborts, nothing
 * is allocated behind the caller's back.
 */
#ifndef DOVETAIL_H
#define DOVETAIL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DVT_VERSION_MAJOR 0
#define DVT_VERSION_MINOR 1

typedef int32_t dvt_status;
enum {
    DVT_OK = 0,
    DVT_ERROR_MALFORMED = 1,      /* the program is not valid: it would read or
                                     write out of range, or leave a value behind */
    DVT_ERROR_OVERFLOW = 2,       /* a result does not fit 64 bits */
    DVT_ERROR_DIVIDE_BY_ZERO = 3, /* a size was divided by zero */
};

/* What a status means, in words. Never NULL. */
const char *dvt_status_text(dvt_status status);

/* ---- Size programs -------------------------------------------------------
 *
 * A size program computes the integer sizes that a model needs at run time
 * (dimensions, strides, offsets) from the values of its symbols. It is a list
 * of instructions for a stack machine over int64; division and modulo round
 * towards minus infinity, as Python's do.
 */
enum {
    DVT_SIZE_PUSH = 0, /* push the operand */
    DVT_SIZE_LOAD = 1, /* push symbols[operand] */
    DVT_SIZE_ADD = 2,  /* pop b, pop a, push a + b; likewise below */
    DVT_SIZE_SUB = 3,
    DVT_SIZE_MUL = 4,
    DVT_SIZE_FLOORDIV = 5,
    DVT_SIZE_MOD = 6,
    DVT_SIZE_MAX = 7,
    DVT_SIZE_MIN = 8,
    DVT_SIZE_STORE = 9, /* pop a, outputs[operand] = a */
};

/* The deepest stack a program may need; a deeper one is malformed. */
#define DVT_SIZE_STACK 256

typedef struct {
    int64_t opcode;
    int64_t operand;
} dvt_size_instruction;

/* Check a program once: known opcodes, indices in range, the stack neither
 * under- nor overflows and ends empty, each output stored exactly once.
 * A program that passes can be run with no further checks but arithmetic. */
dvt_status dvt_size_verify(const dvt_size_instruction *code, size_t count, size_t symbol_count,
                           size_t output_count);

/* Run a verified program. `outputs` is written only when the result is DVT_OK
 * for every instruction before the failing one. */
dvt_status dvt_size_run(const dvt_size_instruction *code, size_t count, const int64_t *symbols,
                        int64_t *outputs);

#ifdef __cplusplus
}
#endif

#endif /* DOVETAIL_H */
