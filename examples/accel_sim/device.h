/* device.h: what the files of the device's process share. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "wire.h"

#include <stddef.h>

/* A kernel: NULL, or what is wrong. */
typedef const char *(*sim_run)(const sim_command *command, unsigned char *memory);

#define X(name) const char *sim_run_##name(const sim_command *command, unsigned char *memory);
SIM_KERNELS(X)
#undef X
/* A constant matrix in tiles. */
const char *sim_run_prepare(const sim_command *command, unsigned char *memory);

extern const char SIM_MISFIT[]; /* "the shapes do not fit together" */

/* ---- elements ---- */

static inline const sim_tensor *sim_input(const sim_command *c, uint32_t index)
{
    return &c->tensors[c->outputs + index];
}

/* Where the element of number n, in row-major order of `shape`, is: `t` broadcast to it. */
int64_t sim_offset(int64_t n, int32_t rank, const int64_t *shape, const sim_tensor *t);
int64_t sim_count(const sim_tensor *t);
bool sim_same_shape(const sim_tensor *a, const sim_tensor *b);
bool sim_broadcasts(const sim_tensor *t, const sim_tensor *over);
/* Element `offset` of a tensor as a number, and back. */
double sim_load(const sim_tensor *t, const unsigned char *memory, int64_t offset);
void sim_store(const sim_tensor *t, unsigned char *memory, int64_t offset, double value);

static inline float *sim_floats(const sim_tensor *t, unsigned char *memory)
{
    return (float *)(void *)(memory + t->address);
}

static inline int64_t *sim_integers(const sim_tensor *t, unsigned char *memory)
{
    return (int64_t *)(void *)(memory + t->address);
}

#endif
