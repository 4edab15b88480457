/* operands.h: the inputs of one call, laid out in any way that DLPack allows. */
#ifndef DVT_FUZZ_OPERANDS_H
#define DVT_FUZZ_OPERANDS_H

#include "fuzz.h"

#define MAX_OPERANDS 64

typedef struct {
    dvt_tensor tensor;
    int64_t shape[DVT_MAX_RANK + 1], strides[DVT_MAX_RANK + 1];
    uint8_t *block; /* exactly the bytes that it reaches */
    size_t block_size;
    uint64_t before; /* what its elements held: see operand_digest */
} operand;

/* Memory, strides, offset and contents for an operand whose dtype, rank and shape are set.
 * False: it is too large to be tried. */
bool operand_fill(operand *o);
void operand_drop(operand *o);
/* A number that depends on every element and on nothing else. */
uint64_t tensor_digest(const dvt_tensor *t);
void tensor_clear(const dvt_tensor *t);
/* Whether what lies between the elements of an operand is as it was; spoils the elements. */
bool operand_gaps_kept(operand *o);

#endif
