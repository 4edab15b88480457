/* trace.h: what a run tells a profiler of Python's. */
#ifndef DVT_TRACE_H
#define DVT_TRACE_H

#include "bindings.h"

typedef struct {
    const dvt_artifact *artifact;
    PyThreadState **released; /* of the thread that runs, which does not hold the interpreter */
    PyObject *range;          /* of the instruction that runs */
} tracing;

/* watch_profiler(namespace, flag, make): while namespace[flag] is True, runs enter a context
 * make(name) for each instruction. None instead of a namespace: they look at nothing. */
PyObject *watch_profiler(PyObject *module, PyObject *args);
/* Whether it is True; needs the interpreter. */
bool profiler_runs(void);
/* For dvt_run_options.trace, with a tracing as its context. */
void trace_instruction(void *context, uint32_t instruction, int begins);
/* After a run, with the interpreter: leaves the range of an instruction that failed. */
void trace_end(tracing *t);

#endif
