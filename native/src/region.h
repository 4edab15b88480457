/* region.h: sets of elements of a buffer, as strided views have them. Not installed. */
#ifndef DVT_REGION_H
#define DVT_REGION_H

#include "internal.h"

#define REGION_RANK                                                                            \
    32 /* a tensor has fewer dimensions, an index of kernel IR as many terms                   \
        */

typedef struct {
    int64_t count, stride;
} region_dim;

/* All elements offset + Σ i * stride + j, 0 <= i < count of each dimension, 0 <= j < run. The
 * dimensions are sorted by stride, the greatest first, and those that join into one are joined;
 * each stride is greater than the run. A run of 0: no element. */
typedef struct {
    int64_t offset, run;
    uint32_t rank;
    region_dim dims[REGION_RANK];
} region;

/* The elements of dimensions in any order, strides of either sign; sizes must have been shown
 * to fit 63 bits. False: more dimensions than there is room for. */
bool dvt_region_make(int64_t offset, const region_dim *dims, uint32_t rank, region *made);
/* Those of a tensor that starts `offset` elements into its memory. */
void dvt_region_of(const dvt_tensor *t, int64_t offset, region *made);
/* From the first to one past the last element, gaps included. */
void dvt_region_hull(const region *r, region *hull);
/* Whether every element of `wanted` is known to be in one of `held`. Exact for regions of one
 * structure, such as the parts of a concatenation, and for few runs; false where it would take
 * long to tell. */
bool dvt_region_covered(const region *wanted, const region *held, size_t count);

#endif
