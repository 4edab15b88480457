/* What an artifact is: all that can be asked of it without running it. */
#include "artifact.h"

PyObject *text_of(const char *text, size_t length)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
}

static PyObject *infos(const dvt_artifact *artifact,
                       const dvt_tensor_info *(*get)(const dvt_artifact *, size_t))
{
    PyObject *list = PyList_New(0);
    const dvt_tensor_info *info;
    for (size_t i = 0; list != NULL && (info = get(artifact, i)) != NULL; i++) {
        PyObject *shape = number_tuple(info->shape, info->ndim);
        PyObject *row = shape ? Py_BuildValue("(NiiN)", text_of(info->name, strlen(info->name)),
                                              info->dtype.code, info->dtype.bits, shape)
                              : NULL;
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *artifact_inputs(PyObject *object, PyObject *unused)
{
    (void)unused;
    return infos(((Artifact *)object)->artifact, dvt_input_info);
}

PyObject *artifact_outputs(PyObject *object, PyObject *unused)
{
    (void)unused;
    return infos(((Artifact *)object)->artifact, dvt_output_info);
}

PyObject *artifact_section(PyObject *object, PyObject *kind)
{
    unsigned long number = PyLong_AsUnsignedLong(kind);
    if (number == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    size_t size = 0;
    const char *data = dvt_section(((Artifact *)object)->artifact,
                                   number > UINT32_MAX ? UINT32_MAX : (uint32_t)number, &size);
    if (data == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
}

PyObject *artifact_host_calls(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_host_call call = {.struct_size = sizeof call};
    for (size_t i = 0; list != NULL && dvt_host_call_at(artifact, i, &call) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NN)", text_of(call.op, call.op_length),
                                      text_of(call.arguments, call.arguments_length));
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *artifact_devices(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_device_info info = {.struct_size = sizeof info};
    for (size_t i = 0; list != NULL && dvt_device_at(artifact, i, &info) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NNI)", text_of(info.name, strlen(info.name)),
                                      text_of(info.version, strlen(info.version)), info.abi);
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *artifact_blobs(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_blob_info b = {.struct_size = sizeof b};
    for (size_t i = 0; list != NULL && dvt_blob_at(artifact, i, &b) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NNNy#i)", text_of(b.owner, b.owner_length),
                                      text_of(b.arguments, b.arguments_length),
                                      PyBool_FromLong((long)b.on_device), (const char *)b.data,
                                      (Py_ssize_t)b.size, (int)b.state);
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *artifact_cleared(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dvt_cleared_bytes(((Artifact *)object)->artifact));
}

PyObject *artifact_padding(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dvt_padding_bytes(((Artifact *)object)->artifact));
}

PyObject *artifact_names(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *names = PyList_New(count);
    for (uint32_t i = 0; names != NULL && i < count; i++) {
        size_t length;
        const char *text = dvt_instruction_name(artifact, i, &length);
        PyObject *name = text_of(text, length);
        if (name == NULL || PyList_SetItem(names, i, name) != 0)
            Py_CLEAR(names);
    }
    return names;
}

PyObject *artifact_last_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *times = PyList_New(count);
    for (uint32_t i = 0; times != NULL && i < count; i++) {
        uint64_t start, taken;
        dvt_last_time(artifact, i, &start, &taken);
        PyObject *row =
            Py_BuildValue("(KK)", (unsigned long long)start, (unsigned long long)taken);
        if (row == NULL || PyList_SetItem(times, i, row) != 0)
            Py_CLEAR(times);
    }
    return times;
}

PyObject *artifact_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *times = PyList_New(count);
    for (uint32_t i = 0; times != NULL && i < count; i++) {
        PyObject *time = PyLong_FromUnsignedLongLong(dvt_least_time(artifact, i));
        if (time == NULL || PyList_SetItem(times, i, time) != 0)
            Py_CLEAR(times);
    }
    return times;
}

PyObject *artifact_memory(PyObject *object, PyObject *unused)
{
    (void)unused;
    dvt_memory memory = {.struct_size = sizeof memory};
    dvt_memory_used(((Artifact *)object)->artifact, &memory);
    return Py_BuildValue("(KKK)", (unsigned long long)memory.peak,
                         (unsigned long long)memory.total, (unsigned long long)memory.bound);
}

PyObject *artifact_signature(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_signature_state(((Artifact *)object)->artifact));
}

PyObject *artifact_trusted(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dvt_trusted(((Artifact *)object)->artifact));
}

PyObject *artifact_digest(PyObject *object, PyObject *unused)
{
    (void)unused;
    uint8_t digest[32];
    dvt_content_digest(((Artifact *)object)->artifact, digest);
    return PyBytes_FromStringAndSize((const char *)digest, sizeof digest);
}

PyObject *artifact_code_refusal(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_code_refusal(((Artifact *)object)->artifact));
}

PyObject *artifact_code(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_code_state(((Artifact *)object)->artifact));
}

PyObject *artifact_symbols(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_symbol_info s = {.struct_size = sizeof s};
    for (size_t i = 0; list != NULL && dvt_symbol_at(artifact, i, &s) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NIiLL)", text_of(s.name, s.name_length), s.input,
                                      (int)s.axis, (long long)s.low, (long long)s.high);
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}
