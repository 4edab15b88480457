/* kernel_plan.h: a decoded kernel bound to one call, and the loops that run it.
 *
 * A kernel is run in strips: each instruction is one loop over up to STRIP elements of one
 * axis. That axis is one of the kernel's own (each element of a strip is then a point of its
 * own, and reductions keep an accumulator for each), or the innermost of each loop (a strip is
 * then a piece of one point's loop, and reductions go along it). An instruction runs at the
 * outermost level that knows all it depends on. */
#ifndef DVT_KERNEL_PLAN_H
#define DVT_KERNEL_PLAN_H

#include "defined.h"
#include "kernel_ir.h"

#define STRIP 512
#define TYPES (T_BOOL + 1) /* those that values are computed in */

/* What a strip may report. */
enum {
    FLAG_DIVIDE = 1,
    FLAG_CHECK = 2,
    FLAG_CHECK_INDEX = 4,
    FLAG_CHECK_BOUNDS = 8,
    FLAG_OUTSIDE = 16,
    FLAG_MEMORY = 32,
    FLAG_DIVISOR = 64,
    FLAG_STOPPED = 128
};

typedef void (*strip_function)(int64_t n, void *restrict result, const void *const *given,
                               uint32_t *flags);
/* Accumulators are double for floating point, else int64. */
typedef void (*reduce_function)(int64_t n, const void *restrict given,
                                const int64_t *restrict places, void *restrict totals,
                                int64_t *restrict found);

/* A scan of a strip in doubles or int64s: totals go on from what they were. */
typedef void (*scan_function)(int64_t n, const void *restrict given, void *restrict result,
                              void *restrict totals);

typedef struct {
    strip_function apply[K_COUNT][TYPES]; /* by the type of the second operand, or the only */
    strip_function cast[TYPES][TYPES];    /* to, from */
    reduce_function along[F_COUNT][TYPES], across[F_COUNT][TYPES];
    strip_function widen[T_COUNT], narrow[T_COUNT]; /* by storage type; NULL: as it is */
} strip_table;

/* ---- kernel_strips.c ---- */
const strip_table *dvt_strips(void);

/* ---- kernel_scan.c: along one strip, or each element of it a scan of its own ---- */
scan_function dvt_scan(uint8_t op, bool is_float, bool along);

enum { LEVEL_ONCE, LEVEL_POINT, LEVEL_LOOP };

typedef struct {
    const ir_instruction *i;
    strip_function apply,
        cast; /* cast: of a reduction's or a store's operand; NULL: none needed */
    reduce_function reduce;
    scan_function scan;
    int64_t offset, step; /* in elements; step: along the strip */
    uint32_t accumulator;
    uint8_t level;
    bool varies; /* along the strip */
} plan_step;

typedef struct {
    const ir_loop *ir;
    uint32_t axes[MAX_AXES]; /* in the order in which they are walked, the strip's last */
    uint32_t walked;         /* how many of them are walked step by step */
    uint32_t strip_axis;     /* or DVT_NONE */
    uint32_t first;          /* of its steps, sorted by level */
    uint32_t levels[MAX_AXES + LEVEL_LOOP + 2]; /* where each level starts among them */
    bool empty;
} plan_loop;

typedef struct {
    char *data;
    uint64_t reach; /* elements from the first to the last */
    type_id type;
    uint32_t item;
    bool aligned;
    bool direct; /* values may be read where they lie */
} plan_buffer;

typedef struct {
    const kernel_ir *ir;
    const dvt_call *call;
    const strip_table *strips;
    bool along;    /* the strips lie along loops, not along an axis of the kernel */
    uint32_t axis; /* the kernel's axis that the strips lie along, or DVT_NONE */
    int64_t units, blocks, grain;
    int64_t length; /* of a strip, at most STRIP */
    int64_t widest; /* the longest strip there is */
    int64_t *extents, *strides;
    plan_buffer *buffers;
    plan_step *steps;
    plan_loop *loops;
    uint32_t *slots; /* one a value */
    bool *fill;      /* one a value: to be spread over a strip, although all of it is alike */
    bool *varies;    /* one a value */
    uint8_t *levels; /* one a value */
    uint32_t *uses;  /* one a value: the step that uses it last */
    uint32_t slot_count, accumulator_count;
    size_t slot_size;
    int64_t work; /* how often loops are entered and their bodies run */
} kernel_plan;

/* ---- kernel_bind.c: sizes, buffers, bounds ---- */
dvt_status dvt_kernel_bind(kernel_plan *plan, dvt_error *error);
/* What a bound kernel does with its operands: outputs, then inputs. False: out of memory. */
bool dvt_kernel_uses(const kernel_plan *plan, operand_use *uses);

/* ---- kernel_plan.c ---- */
dvt_status dvt_kernel_plan(const dvt_call *call, kernel_plan **plan, dvt_error *error);

/* ---- kernel_run.c ---- */
/* Bytes that each thread takes while it runs a kernel. */
size_t dvt_kernel_scratch(const kernel_plan *plan);

#endif
