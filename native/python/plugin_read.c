/* Operations described by Python tuples, as the structures of dovetail_plugin.h. */
#include "plugin_bindings.h"

void *pool_take(pool **p, size_t count, size_t size)
{
    if (count > ((size_t)1 << 40) / size) {
        PyErr_NoMemory();
        return NULL;
    }
    pool *block = PyMem_Calloc(1, sizeof(pool) + 8 + count * size);
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    block->next = *p;
    *p = block;
    return (char *)block + 16;
}

void pool_drop(pool **p)
{
    while (*p != NULL) {
        pool *next = (*p)->next;
        PyMem_Free(*p);
        *p = next;
    }
}

const char *read_text(pool **p, PyObject *object)
{
    PyObject *bytes = PyUnicode_AsUTF8String(object);
    if (bytes == NULL)
        return NULL;
    size_t size = (size_t)PyBytes_Size(bytes);
    char *text = pool_take(p, size + 1, 1);
    if (text != NULL)
        memcpy(text, PyBytes_AsString(bytes), size);
    Py_DECREF(bytes);
    return text;
}

static int64_t *read_ints(pool **p, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    int64_t *values = count < 0 ? NULL : pool_take(p, (size_t)count, sizeof *values);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (values[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    return values;
}

static double *read_floats(pool **p, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    double *values = pool_take(p, (size_t)count, sizeof *values);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        values[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
        if (values[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    return values;
}

static int read_tensor(pool **p, PyObject *given, dvp_tensor *tensor, int32_t *slot)
{
    *slot = -1;
    if (given == Py_None) {
        tensor->ndim = -1;
        return 0;
    }
    int code, bits;
    PyObject *shape, *strides;
    unsigned long long offset;
    if (!PyArg_ParseTuple(given, "iiO!O!iK", &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type,
                          &strides, slot, &offset))
        return -1;
    if (PyTuple_Size(shape) != PyTuple_Size(strides) || PyTuple_Size(shape) > 64) {
        PyErr_SetString(PyExc_ValueError, "a tensor needs as many strides as sizes");
        return -1;
    }
    tensor->device.type = DVP_DEVICE_MEMORY;
    tensor->ndim = (int32_t)PyTuple_Size(shape);
    tensor->dtype = (dvp_dtype){(uint8_t)code, (uint8_t)bits, 1};
    tensor->shape = read_ints(p, shape);
    tensor->strides = tensor->shape == NULL ? NULL : read_ints(p, strides);
    tensor->byte_offset = offset;
    return tensor->strides == NULL ? -1 : 0;
}

static int read_tensors(pool **p, PyObject *given, dvp_tensor **tensors, int32_t **slots,
                        uint32_t *count)
{
    *count = (uint32_t)PyTuple_Size(given);
    *tensors = pool_take(p, *count, sizeof **tensors);
    *slots = *tensors == NULL ? NULL : pool_take(p, *count, sizeof **slots);
    if (*slots == NULL)
        return -1;
    for (uint32_t i = 0; i < *count; i++)
        if (read_tensor(p, PyTuple_GetItem(given, i), *tensors + i, *slots + i) != 0)
            return -1;
    return 0;
}

static int read_list(pool **p, PyObject *tuple, dvp_attribute *attribute)
{
    bool floats = false;
    attribute->count = (uint32_t)PyTuple_Size(tuple);
    for (uint32_t i = 0; i < attribute->count; i++)
        floats = floats || PyFloat_Check(PyTuple_GetItem(tuple, i));
    attribute->kind = floats ? DVP_ATTR_FLOATS : DVP_ATTR_INTS;
    if (floats)
        attribute->value.floats = read_floats(p, tuple);
    else
        attribute->value.ints = read_ints(p, tuple);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_attribute(pool **p, PyObject *given, dvp_attribute *attribute, uint8_t *type)
{
    PyObject *name, *value;
    if (!PyArg_ParseTuple(given, "UO|b", &name, &value, type))
        return -1;
    attribute->name = read_text(p, name);
    attribute->count = 1;
    if (value == Py_None) {
        attribute->kind = DVP_ATTR_NONE;
    } else if (PyLong_Check(value)) {
        attribute->kind = DVP_ATTR_INT;
        attribute->value.i = PyLong_AsLongLong(value);
    } else if (PyFloat_Check(value)) {
        attribute->kind = DVP_ATTR_FLOAT;
        attribute->value.f = PyFloat_AsDouble(value);
    } else if (PyUnicode_Check(value)) {
        attribute->kind = DVP_ATTR_TEXT;
        attribute->value.text = read_text(p, value);
    } else if (PyTuple_Check(value)) {
        return read_list(p, value, attribute);
    } else {
        PyErr_SetString(PyExc_TypeError, "an attribute is None, a number, a string or a tuple");
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- what quantised operands stand for ---- */

static const dvp_tensor *hidden_input(const plugin_step *step, int place)
{
    bool there = place >= (int)step->op.input_count && (uint32_t)place < plugin_reads(step);
    return there ? &step->inputs[place] : NULL;
}

static int read_quantization(pool **p, PyObject *given, const plugin_step *step,
                             dvp_quantization **operands)
{
    uint32_t operand;
    int scales, zeros, code, bits;
    PyObject *block;
    long long zero, least, greatest;
    double scale;
    if (!PyArg_ParseTuple(given, "IO!dLiiLLii", &operand, &PyTuple_Type, &block, &scale, &zero,
                          &scales, &zeros, &least, &greatest, &code, &bits))
        return -1;
    uint32_t inputs = step->op.input_count, count = inputs + step->op.output_count;
    const dvp_tensor *t = operand < inputs  ? &step->inputs[operand]
                          : operand < count ? &step->outputs[operand - inputs]
                                            : NULL;
    if (t == NULL || t->ndim != (int32_t)PyTuple_Size(block) ||
        (scales >= 0 && hidden_input(step, scales) == NULL) ||
        (zeros >= 0 && hidden_input(step, zeros) == NULL)) {
        PyErr_SetString(PyExc_ValueError,
                        "a quantization is of no operand, or of another rank");
        return -1;
    }
    dvp_quantization *made = pool_take(p, 1, sizeof *made);
    const int64_t *blocks = made == NULL ? NULL : read_ints(p, block);
    if (blocks == NULL)
        return -1;
    *made = (dvp_quantization){.struct_size = sizeof *made,
                               .real = {(uint8_t)code, (uint8_t)bits, 1},
                               .block = blocks,
                               .scale = scale,
                               .zero_point = zero,
                               .least = least,
                               .greatest = greatest,
                               .scales = hidden_input(step, scales),
                               .zero_points = hidden_input(step, zeros)};
    operands[operand] = made;
    return 0;
}

static int read_quantizations(pool **p, PyObject *given, plugin_step *step)
{
    if (given == NULL || PyTuple_Size(given) == 0)
        return 0;
    dvp_quantization **operands =
        pool_take(p, step->op.input_count + step->op.output_count, sizeof *operands);
    for (Py_ssize_t i = 0; operands != NULL && i < PyTuple_Size(given); i++)
        if (read_quantization(p, PyTuple_GetItem(given, i), step, operands) != 0)
            return -1;
    step->op.quantization = (const dvp_quantization *const *)operands;
    return operands == NULL ? -1 : 0;
}

int read_op(pool **p, PyObject *given, plugin_step *step)
{
    PyObject *name, *inputs, *outputs, *attributes, *quantization = NULL;
    if (!PyArg_ParseTuple(given, "UO!O!O!|IO!", &name, &PyTuple_Type, &inputs, &PyTuple_Type,
                          &outputs, &PyTuple_Type, &attributes, &step->hidden, &PyTuple_Type,
                          &quantization))
        return -1;
    dvp_op *op = &step->op;
    op->struct_size = sizeof *op;
    op->name = read_text(p, name);
    if (op->name == NULL ||
        read_tensors(p, inputs, &step->inputs, &step->input_slots, &op->input_count) != 0 ||
        read_tensors(p, outputs, &step->outputs, &step->output_slots, &op->output_count) != 0)
        return -1;
    step->input_flags = pool_take(p, op->input_count, sizeof *step->input_flags);
    step->prepared = step->input_flags == NULL
                         ? NULL
                         : pool_take(p, op->input_count, sizeof *step->prepared);
    if (step->prepared == NULL)
        return -1;
    op->input_flags = step->input_flags;
    op->attribute_count = (uint32_t)PyTuple_Size(attributes);
    dvp_attribute *list = pool_take(p, op->attribute_count, sizeof *list);
    uint8_t *types = list == NULL ? NULL : pool_take(p, op->attribute_count, sizeof *types);
    if (types == NULL)
        return -1;
    for (uint32_t i = 0; i < op->attribute_count; i++)
        if (read_attribute(p, PyTuple_GetItem(attributes, i), list + i, types + i) != 0)
            return -1;
    op->inputs = step->inputs;
    op->outputs = step->outputs;
    op->attributes = list;
    op->attribute_types = types;
    if (step->hidden > op->input_count) {
        PyErr_SetString(PyExc_ValueError, "more scales than inputs");
        return -1;
    }
    op->input_count -= step->hidden;
    return read_quantizations(p, quantization, step);
}
