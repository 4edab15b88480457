/* kernel_ir.h: kernels that a file carries as data, decoded; and how one is bound to the sizes
 * of a call. What ir/kernel.py says of kernel IR holds here. */
#ifndef DVT_KERNEL_IR_H
#define DVT_KERNEL_IR_H

#include "internal.h"
#include "kernel_ops.h"

/* What a kernel may hold; SPEC.md has the same numbers. */
#define MAX_KERNELS (1u << 16)
#define MAX_BUFFERS (1u << 10)
#define MAX_SIZES   (1u << 12)
#define MAX_VALUES  (1u << 14)
#define MAX_AXES    64u
#define MAX_LOOPS   64u
#define MAX_TERMS   32u
#define MAX_NAME    255u /* bytes of a kernel's name */

enum { IR_LOAD, IR_CONST, IR_POSITION, IR_APPLY, IR_REDUCE, IR_STORE, IR_SCAN, IR_KINDS };
enum { ROLE_IN, ROLE_OUT, ROLE_INOUT, ROLE_COUNT };

/* A number, or (size > 0) attribute size - 1 of the call. */
typedef struct {
    int64_t value;
    uint32_t size;
} ir_dim;

/* An axis or a value, times a stride. */
typedef struct {
    uint32_t place;
    ir_dim stride;
} ir_term;

typedef struct {
    ir_dim offset;
    uint32_t first; /* of its terms: those along axes, then gathered values */
    uint32_t axis_count, value_count;
} ir_index;

typedef struct {
    uint8_t kind, op, arity;
    type_id type;    /* of the result; of the value that is stored */
    uint32_t result; /* value; none for stores */
    uint32_t args[3];
    uint32_t buffer;
    uint32_t mask; /* value + 1, or 0 */
    ir_index index;
    dvt_number constant;
} ir_instruction;

typedef struct {
    uint32_t axes[MAX_AXES];
    uint32_t axis_count;
    uint32_t first, count; /* instructions */
} ir_loop;

typedef struct {
    type_id type;
    uint8_t role;
    uint32_t place; /* among the outputs or the inputs of a call */
} ir_buffer;

typedef struct {
    type_id type;
    uint32_t loop; /* that defines it */
    bool reduced;  /* a reduction's result: seen after its loop only */
} ir_value;

typedef struct {
    dvt_kernel entry; /* first: a call's kernel points at it */
    span name;
    uint32_t number; /* in the section */
    uint32_t size_count, buffer_count, output_count, input_count;
    uint32_t axis_count, kernel_axis_count, loop_count;
    uint32_t instruction_count, term_count, value_count;
    ir_buffer *buffers;
    ir_dim *extents; /* of the axes, the kernel's own first */
    ir_loop *loops;
    ir_instruction *instructions;
    ir_term *terms;
    ir_value *values;
} kernel_ir;

/* ---- kernel_rules.c ---- */
bool dvt_is_float(type_id type);
/* What a loaded element of a storage type is computed in. */
type_id dvt_computed(type_id storage);
/* Operands of an operation, or of a reduction. */
uint8_t dvt_arity(uint8_t op, bool is_reduction);
bool dvt_admits(uint8_t op, bool is_reduction, const type_id *given, type_id result);
/* The least and the greatest number of each type of integers, and of bool. */
extern const int64_t dvt_least[], dvt_most[];
/* Whether a type of integers, or bool, has this number. */
bool dvt_holds(type_id type, int64_t number);

/* ---- kernel_plan.c, kernel_run.c: entries of the kernel table for decoded kernels ---- */
dvt_status dvt_kernel_ir_check(const dvt_call *call, dvt_error *error);
dvt_status dvt_kernel_ir_run(const dvt_call *call, dvt_error *error);
/* The points of a call's iteration space; INT64_MAX for one that is refused. */
int64_t dvt_kernel_ir_work(const dvt_call *call);

#endif
