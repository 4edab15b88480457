/* aten.h: host operations through the C functions that libtorch exports, with no Python. */
#ifndef DVT_ATEN_H
#define DVT_ATEN_H

#include "bindings.h"

/* One host call of an artifact, made ready for libtorch. */
typedef struct aten_plan aten_plan;

/* Whether this process has loaded a libtorch with the functions needed. */
bool aten_available(void);

/* A plan from what runtime/host.py describes: (operator, overload, direct function or "",
 * arguments, number of results, whether they come as one list). NULL with an exception set
 * where the description is wrong; NULL without one where this libtorch lacks what the call
 * needs. */
aten_plan *aten_plan_new(PyObject *description);
void aten_plan_free(aten_plan *plan);

/* Runs one operation; needs no interpreter lock. False: nothing was done, and the operation
 * must go through Python, which also says what was wrong with it. */
bool aten_run(const aten_plan *plan, const dvt_host_operation *operation);

/* Frees what aten_run keeps with a frame. */
void aten_free_kept(void *kept);

/* Whether large matrix products are faster by oneDNN than by the library that PyTorch calls.
 * Those then make memory of their own for their results. */
bool aten_prefers_onednn(void);

/* How many threads PyTorch uses in this thread; 0: unknown. */
uint32_t aten_threads(void);

/* Gradients off for this thread; returns whether they were on, for aten_grad_on. */
bool aten_grad_off(void);
void aten_grad_on(bool was_on);

#endif
