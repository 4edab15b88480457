/* artifact.h: what the files of dovetail._native.Artifact share. */
#ifndef DVT_ARTIFACT_OBJECT_H
#define DVT_ARTIFACT_OBJECT_H

#include "host.h"

/* An open artifact. A clone of it has its own state and shares the rest with the one that was
 * opened. */
typedef struct Artifact {
    PyObject_HEAD dvt_artifact *artifact;
    bool plain; /* opened with PLAIN_TENSORS */
    host_binding host;
    PyObject *plugins;      /* a tuple: the artifact runs on their devices */
    struct Artifact *whole; /* of a clone: the one that was opened, which it keeps */
    dvt_state *state;       /* of a clone, where there is state; NULL: the artifact's own */
} Artifact;

static inline host_binding *host_of(Artifact *self)
{
    return self->whole != NULL ? &self->whole->host : &self->host;
}

/* ---- artifact_call.c ---- */
PyObject *artifact_run(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *artifact_call(PyObject *self, PyObject *args, PyObject *kwargs);
/* Where results are made, and the stream that a run goes to. */
typedef struct {
    const dvt_tensor *results;
    dvt_stream *stream;
    dvt_event *done;
} run_place;
/* A run with the interpreter lock released; `place` may be NULL. */
dvt_status artifact_run_native(Artifact *self, const dvt_tensor *tensors, size_t given,
                               dvt_managed **outputs, size_t results, const run_place *place,
                               dvt_error *error);

/* ---- stream.c ---- */
PyObject *artifact_run_on(PyObject *self, PyObject *args);
PyObject *artifact_plugins(PyObject *self, PyObject *unused);

/* ---- artifact_state.c ---- */
PyObject *artifact_clone(PyObject *self, PyObject *unused);
PyObject *artifact_states(PyObject *self, PyObject *unused);
PyObject *artifact_read_state(PyObject *self, PyObject *index);
PyObject *artifact_state_bytes(PyObject *self, PyObject *index);
PyObject *artifact_write_state(PyObject *self, PyObject *args);
PyObject *artifact_reset_state(PyObject *self, PyObject *unused);

/* ---- artifact_info.c: methods that only look ---- */
PyObject *artifact_inputs(PyObject *self, PyObject *unused);
PyObject *artifact_outputs(PyObject *self, PyObject *unused);
PyObject *artifact_section(PyObject *self, PyObject *kind);
PyObject *artifact_host_calls(PyObject *self, PyObject *unused);
PyObject *artifact_devices(PyObject *self, PyObject *unused);
PyObject *artifact_blobs(PyObject *self, PyObject *unused);
PyObject *artifact_cleared(PyObject *self, PyObject *unused);
PyObject *artifact_padding(PyObject *self, PyObject *unused);
PyObject *artifact_names(PyObject *self, PyObject *unused);
PyObject *artifact_last_times(PyObject *self, PyObject *unused);
PyObject *artifact_times(PyObject *self, PyObject *unused);
PyObject *artifact_memory(PyObject *self, PyObject *unused);
PyObject *artifact_signature(PyObject *self, PyObject *unused);
PyObject *artifact_trusted(PyObject *self, PyObject *unused);
PyObject *artifact_digest(PyObject *self, PyObject *unused);
PyObject *artifact_code_refusal(PyObject *self, PyObject *unused);
PyObject *artifact_code(PyObject *self, PyObject *unused);
PyObject *artifact_symbols(PyObject *self, PyObject *unused);
/* Text of a file, which may be none: then it becomes text that names nothing. */
PyObject *text_of(const char *text, size_t length);

#endif
