/* plugin_bindings.h: what the files of the plug-in binding share. */
#ifndef DVT_PLUGIN_BINDINGS_H
#define DVT_PLUGIN_BINDINGS_H

#include "bindings.h"

#include "plugin.h"

typedef struct {
    PyObject_HEAD plugin *plugin;
} Plugin;

/* Memory that is freed all at once. */
typedef struct pool {
    struct pool *next;
} pool;

/* Zeroed memory, or NULL with an exception set. */
void *pool_take(pool **p, size_t count, size_t size);
void pool_drop(pool **p);

const char *read_text(pool **p, PyObject *object);

/* Reads (op, inputs, outputs, attributes[, hidden, quantization]) into step->op. A tensor is
 * None or (code, bits, shape, strides, slot, offset), an attribute (name, value, type). The
 * last `hidden` inputs are scales and zero points. A quantised operand is (its place among
 * inputs, then outputs; block, scale, zero point, the places of scales and of zero points among
 * the inputs or -1, least, greatest, code and bits of the real type). 0, or -1 with an
 * exception set. */
int read_op(pool **p, PyObject *given, plugin_step *step);

PyObject *raise_plugin(const plugin_error *error);
extern PyType_Spec plugin_spec, device_buffer_spec, plugin_program_spec;
extern PyTypeObject *plugin_type, *device_buffer_type;

/* compile(tensors, bases, ops, inputs, outputs) and blob_state(blob) of Plugin. */
PyObject *plugin_compile_segment(PyObject *object, PyObject *args);
PyObject *plugin_pack_constant(PyObject *object, PyObject *args);
PyObject *plugin_blob_state(PyObject *object, PyObject *args);

/* Memory of a DeviceBuffer. */
plugin_buffer *device_memory(PyObject *buffer);

#endif
