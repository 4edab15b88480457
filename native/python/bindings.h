/* bindings.h: what the extension's files share. */
#ifndef DVT_BINDINGS_H
#define DVT_BINDINGS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dovetail.h"

#include <stdbool.h>
#include <string.h>

/* DLPack's exchange interface for Python types, by which tensors cross with no Python call. A
 * type offers it as a capsule, `__dlpack_c_exchange_api__`; the layout is DLPack's, version 1.
 */
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *older;
    int (*allocate)(dvt_tensor *like, dvt_managed **out, void *context,
                    void (*fail)(void *context, const char *kind, const char *message));
    int (*managed_from_object)(void *object, dvt_managed **out);
    int (*object_from_managed)(dvt_managed *tensor, void **out);
    int (*tensor_from_object)(void *object, dvt_tensor *out); /* may be NULL */
    int (*current_stream)(int32_t device, int32_t id, void **out);
} exchange_api;

/* The exchange interface of a type, or NULL without an error set. */
const exchange_api *exchange_of(PyTypeObject *type);

/* Whether a tensor's memory holds the negatives of its values; -1 with an error set. */
int is_negated(PyObject *object);

/* One argument of a call, readable as a tensor for as long as it is not released. */
typedef struct {
    dvt_tensor tensor;
    const exchange_api *api; /* set when the object offers it */
    bool through_buffer;     /* came by the buffer protocol */
    bool read_only;
    Py_buffer view;
    PyObject *capsule;  /* a DLPack capsule to keep, or NULL */
    PyObject *resolved; /* a copy to keep, where the object's memory does not hold its values */
    int64_t shape[16], strides[16];
} argument;

/* 0, or -1 with an exception set. Zero the argument before. `plain`: the caller knows that no
 * tensor's memory differs from its values by a lazy sign or conjugation. */
int read_argument(PyObject *object, argument *a, bool plain);
void release_argument(argument *a);

/* A dovetail tensor that owns `managed` (which is released on failure too). */
PyObject *wrap_managed(dvt_managed *managed);
extern PyType_Spec tensor_spec, artifact_spec, source_spec;
/* stream.c: what callers have of a device. */
extern PyType_Spec memory_spec, stream_spec, event_spec;
extern PyTypeObject *memory_type, *stream_type, *event_type;
/* read_dlpack(capsule), see stream_dlpack.c */
PyObject *read_dlpack(PyObject *module, PyObject *capsule);
extern PyTypeObject *tensor_type, *source_type;

/* The source that a Source object holds, or NULL if it is none; no exception is set. */
dvt_source *source_of(PyObject *object);

/* listen(log, begin, end, progress), see plugin_listen.c */
PyObject *plugin_set_listener(PyObject *module, PyObject *args);
/* hold(tensor) -> Tensor, see tensor.c */
PyObject *hold_tensor(PyObject *module, PyObject *object);
/* plan_memory([(size, first, last)]) -> (offsets, peak, total, bound), see memory.c */
PyObject *plan_memory(PyObject *module, PyObject *lifetimes);
/* states(tensors, how) -> bytes and unchanged(tensors, how, kept) -> bool, see state.c */
PyObject *tensor_states(PyObject *module, PyObject *args);
PyObject *states_unchanged(PyObject *module, PyObject *const *args, Py_ssize_t given);

/* The plug-in that a Plugin object holds, or NULL with an exception set. */
struct dvt_plugin *plugin_of(PyObject *object);

/* Raises the class of dovetail.errors that a status stands for. Returns NULL. */
PyObject *raise_error(const dvt_error *error);
/* Raises a class of dovetail.errors by name. Returns NULL. */
PyObject *raise_named(const char *name, const char *format, ...);

#endif
