/* stream.h: what the files about devices of callers share. */
#ifndef DVT_STREAM_OBJECT_H
#define DVT_STREAM_OBJECT_H

#include "plugin_bindings.h"

/* Memory on a device, which keeps the plug-in and what else it rests on. */
typedef struct {
    PyObject_HEAD dvt_buffer *buffer;
    PyObject *owner; /* Plugin */
    PyObject *keep;  /* of memory that is another's, or NULL */
} Memory;

/* dlpack(code, bits, shape, strides, offset, versioned) of Memory. */
PyObject *memory_dlpack(PyObject *self, PyObject *args);
/* Reads tuples of as many numbers; -1 with an exception set. */
int read_dimensions(PyObject *given, int64_t *numbers, Py_ssize_t rank);

enum { MOST_DIMENSIONS = 16 };

#endif
