/* Plugin.compile and Plugin.check_blob: whole segments for plug-ins that compile them. */
#include "plugin_bindings.h"

static int32_t *read_indices(pool **p, PyObject *tuple)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "indices are a tuple of ints");
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(tuple);
    int32_t *indices = pool_take(p, (size_t)count, sizeof *indices);
    for (Py_ssize_t i = 0; indices != NULL && i < count; i++)
        indices[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? NULL : indices;
}

/* Operations, each (description, input indices, output indices). */
static int read_ops(pool **p, PyObject *given, uint32_t stride, dvp_segment *segment)
{
    segment->op_count = (uint32_t)PyTuple_Size(given);
    char *ops = pool_take(p, segment->op_count, stride);
    const int32_t **in = pool_take(p, segment->op_count, sizeof *in);
    const int32_t **out = pool_take(p, segment->op_count, sizeof *out);
    if (ops == NULL || in == NULL || out == NULL)
        return -1;
    for (uint32_t i = 0; i < segment->op_count; i++) {
        PyObject *description, *inputs, *outputs;
        plugin_step step = {0};
        if (!PyArg_ParseTuple(PyTuple_GetItem(given, i), "O!OO", &PyTuple_Type, &description,
                              &inputs, &outputs) ||
            read_op(p, description, &step) != 0)
            return -1;
        step.op.struct_size = stride;
        memcpy(ops + (size_t)i * stride, &step.op, stride);
        in[i] = read_indices(p, inputs);
        out[i] = in[i] == NULL ? NULL : read_indices(p, outputs);
        if (out[i] == NULL)
            return -1;
    }
    segment->ops = (const dvp_op *)(const void *)ops;
    segment->op_inputs = in;
    segment->op_outputs = out;
    return 0;
}

/* The sizes that are open, each (text, least, greatest, multiple), and which of them the
 * dimensions of each tensor are. */
static int read_sizes(pool **p, PyObject *sizes, PyObject *dims, dvp_segment *segment)
{
    segment->size_count = (uint32_t)PyTuple_Size(sizes);
    dvp_size *made = pool_take(p, segment->size_count, sizeof *made);
    const int32_t **rows =
        made == NULL ? NULL : pool_take(p, segment->tensor_count, sizeof *rows);
    if (rows == NULL || PyTuple_Size(dims) != (Py_ssize_t)segment->tensor_count)
        return -1;
    for (uint32_t i = 0; i < segment->size_count; i++) {
        PyObject *text;
        long long least, greatest, multiple;
        if (!PyArg_ParseTuple(PyTuple_GetItem(sizes, i), "ULLL", &text, &least, &greatest,
                              &multiple))
            return -1;
        made[i] = (dvp_size){sizeof *made, 0, read_text(p, text), least, greatest, multiple};
        if (made[i].text == NULL)
            return -1;
    }
    for (uint32_t i = 0; i < segment->tensor_count; i++) {
        rows[i] = read_indices(p, PyTuple_GetItem(dims, i));
        if (rows[i] == NULL)
            return -1;
    }
    segment->sizes = made;
    segment->dims = rows;
    return 0;
}

/* The contents of constants, and where the compiler says which it has taken. */
static int read_data(pool **p, PyObject *given, dvp_segment *segment)
{
    const void **data = pool_take(p, segment->tensor_count, sizeof *data);
    segment->absorbed = data == NULL ? NULL : pool_take(p, segment->tensor_count, 1);
    if (segment->absorbed == NULL || PyTuple_Size(given) != (Py_ssize_t)segment->tensor_count)
        return -1;
    for (uint32_t i = 0; i < segment->tensor_count; i++) {
        PyObject *bytes = PyTuple_GetItem(given, i);
        if (bytes != Py_None && (data[i] = PyBytes_AsString(bytes)) == NULL)
            return -1;
    }
    segment->data = data;
    return 0;
}

/* Indices of the tensors that a compiler has put into its code. */
static PyObject *absorbed_tuple(const dvp_segment *segment)
{
    Py_ssize_t count = 0;
    for (uint32_t i = 0; i < segment->tensor_count; i++)
        count += segment->absorbed[i] == 1;
    PyObject *made = PyTuple_New(count);
    for (uint32_t i = 0, n = 0; made != NULL && i < segment->tensor_count; i++)
        if (segment->absorbed[i] == 1)
            PyTuple_SetItem(made, n++, PyLong_FromUnsignedLong(i));
    return made;
}

static int read_segment(pool **p, PyObject *args, uint32_t stride, dvp_segment *segment)
{
    PyObject *tensors, *bases, *ops, *inputs, *outputs, *sizes, *dims, *data;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!", &PyTuple_Type, &tensors, &PyTuple_Type,
                          &bases, &PyTuple_Type, &ops, &PyTuple_Type, &inputs, &PyTuple_Type,
                          &outputs, &PyTuple_Type, &sizes, &PyTuple_Type, &dims, &PyTuple_Type,
                          &data))
        return -1;
    /* The tensors are read as the inputs of an operation that has no name. */
    PyObject *all = Py_BuildValue("(sO()())", "", tensors);
    plugin_step step = {0};
    int failed = all == NULL || read_op(p, all, &step) != 0;
    Py_XDECREF(all);
    if (failed)
        return -1;
    segment->struct_size = sizeof *segment;
    segment->tensors = step.inputs;
    segment->tensor_count = step.op.input_count;
    segment->input_count = (uint32_t)PyTuple_Size(inputs);
    segment->output_count = (uint32_t)PyTuple_Size(outputs);
    segment->bases = read_indices(p, bases);
    segment->inputs = segment->bases == NULL ? NULL : read_indices(p, inputs);
    segment->outputs = segment->inputs == NULL ? NULL : read_indices(p, outputs);
    if (segment->outputs == NULL || read_sizes(p, sizes, dims, segment) != 0 ||
        read_data(p, data, segment) != 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "dimensions or contents of every tensor");
        return -1;
    }
    return read_ops(p, ops, stride, segment);
}

PyObject *plugin_compile_segment(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    pool *memory = NULL;
    dvp_segment segment = {0};
    plugin_error error = {0};
    const void *blob = NULL;
    uint64_t bytes = 0;
    PyObject *result = NULL;
    /* A plug-in of ABI 1.0 steps from one operation to the next by the size it has there. */
    bool first = (p->api.abi & 0xffff) == 0;
    uint32_t stride = first ? (uint32_t)offsetof(dvp_op, attribute_types) : sizeof(dvp_op);
    if (read_segment(&memory, args, stride, &segment) == 0) {
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        dvt_lock_take(&p->lock);
        failed = plugin_compile(p, &segment, &blob, &bytes, &error);
        dvt_lock_give(&p->lock);
        Py_END_ALLOW_THREADS;
        if (failed == 0) {
            PyObject *absorbed = absorbed_tuple(&segment);
            if (absorbed != NULL)
                result = Py_BuildValue("(y#N)", blob, (Py_ssize_t)bytes, absorbed);
            Py_BEGIN_ALLOW_THREADS;
            dvt_lock_take(&p->lock);
            plugin_free_blob(p, blob);
            dvt_lock_give(&p->lock);
            Py_END_ALLOW_THREADS;
        } else {
            result = failed > 0 ? Py_NewRef(Py_None) : raise_plugin(&error);
        }
    }
    pool_drop(&memory);
    return result;
}

PyObject *plugin_blob_state(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    const char *blob;
    Py_ssize_t bytes;
    int32_t state = DVP_BLOB_UNSUPPORTED;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "y#", &blob, &bytes))
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_check_blob(p, blob, (uint64_t)bytes, &state, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    return failed < 0 ? raise_plugin(&error) : PyLong_FromLong(state);
}

/* pack(op, inputs, outputs, attributes, hidden, quantization, input, data, offset) of Plugin.
 */
PyObject *plugin_pack_constant(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    PyObject *description;
    unsigned int input;
    const char *data;
    Py_ssize_t size;
    unsigned long long offset;
    pool *memory = NULL;
    plugin_step step = {0};
    plugin_error error = {0};
    const void *packed = NULL;
    uint64_t bytes = 0;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "O!Iy#K", &PyTuple_Type, &description, &input, &data, &size,
                          &offset))
        return NULL;
    if (read_op(&memory, description, &step) == 0 && input < step.op.input_count) {
        step.inputs[input].data = (void *)(uintptr_t)data;
        step.inputs[input].byte_offset = offset;
        step.inputs[input].device.type = DVP_HOST_MEMORY;
        step.input_flags[input] = DVP_OPERAND_CONSTANT;
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        dvt_lock_take(&p->lock);
        failed = plugin_pack(p, &step.op, input, &packed, &bytes, &error);
        dvt_lock_give(&p->lock);
        Py_END_ALLOW_THREADS;
        if (failed == 0) {
            result = PyBytes_FromStringAndSize(packed, (Py_ssize_t)bytes);
            Py_BEGIN_ALLOW_THREADS;
            dvt_lock_take(&p->lock);
            plugin_free_packed(p, packed);
            dvt_lock_give(&p->lock);
            Py_END_ALLOW_THREADS;
        } else {
            result = failed > 0 ? Py_NewRef(Py_None) : raise_plugin(&error);
        }
    } else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the operation has no such input");
    pool_drop(&memory);
    return result;
}
