/* iterate.h: one loop nest for every kernel that goes through elements one by one. */
#ifndef DVT_ITERATE_H
#define DVT_ITERATE_H

#include "internal.h"

#define DVT_OPERANDS 4

/* Processes n elements; operand o's i-th lies at p[o] + i * s[o] bytes. */
typedef void (*dvt_loop)(int64_t n, char *const *p, const int64_t *s, const void *context);

/* Calls `loop` over the shape of tensors[0], to which the others broadcast, in parallel pieces
 * of at least `grain` elements. */
void dvt_iterate(int operands, const dvt_tensor *const *tensors, dvt_loop loop,
                 const void *context, int64_t grain);

/* Writes an integer to a tensor of one element, of any type the kernels know. */
void dvt_store_int(const dvt_tensor *t, int64_t value);

#endif
