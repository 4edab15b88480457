/* defined.h: what of a buffer has been written, element by element. Not installed. */
#ifndef DVT_DEFINED_H
#define DVT_DEFINED_H

#include "region.h"

/* What an instruction does with an operand, as far as it can be told before it runs. */
typedef struct operand_use {
    bool reads; /* of outputs: before it has written there */
    bool gaps;  /* it may read between the elements, up to the last */
    bool fills; /* it writes every element */
} operand_use;

typedef struct {
    region *written; /* grows */
    uint32_t count, room;
    bool all;    /* nothing in it is undefined */
    bool clears; /* because it is cleared before its first use */
} owner_state;

/* A walk over a frame's instructions. */
typedef struct {
    const program *p;
    frame *f;
    owner_state *owners; /* one a buffer */
    uint64_t effort;     /* regions compared so far */
} definedness;

dvt_status dvt_defined_begin(definedness *d, const program *p, frame *f, dvt_error *error);
/* `uses`: one an output, then one an input. */
dvt_status dvt_defined_step(definedness *d, uint32_t at, const operand_use *uses,
                            dvt_error *error);
/* Checks what is handed out and leaves in the frame what must be cleared. */
dvt_status dvt_defined_end(definedness *d, dvt_error *error);
void dvt_defined_free(definedness *d);

/* Whether there is memory between a tensor's elements. */
bool dvt_has_gaps(const dvt_tensor *t);

#endif
