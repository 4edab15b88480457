/* Inputs and results of a call that lie on a device: which may, and where they are. */
#include "device_state.h"
#include "stream.h"

#include <stdlib.h>

/* ---- which may, worked out when an artifact is opened ---- */

static void use(const program *p, const instruction *in, uint32_t buffer, bool writes,
                uint32_t *devices, uint32_t *writers)
{
    uint32_t root = p->buffers[buffer].root;
    uint8_t kind = p->buffers[root].kind;
    if (kind != KIND_INPUT && kind != KIND_OUTPUT)
        return;
    bool copies = in->opcode == OP_COPY && in->device != 0 && root == buffer &&
                  (devices[root] == 0 || devices[root] == in->device);
    writers[root] += writes;
    copies = copies && (kind == KIND_INPUT || (writes && writers[root] == 1));
    devices[root] = copies ? in->device : DVT_NONE;
}

dvt_status dvt_device_tensors_plan(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    if (p->device_count == 0)
        return DVT_OK;
    uint32_t *writers = calloc(p->buffer_count + 1u, sizeof *writers);
    a->tensor_devices = calloc(p->buffer_count + 1u, sizeof *a->tensor_devices);
    if (writers == NULL || a->tensor_devices == NULL) {
        free(writers);
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < p->symbol_count; i++) /* those whose value is a size */
        if (p->symbols[i].axis == DVT_NONE)
            a->tensor_devices[p->inputs[p->symbols[i].input]] = DVT_NONE;
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        for (uint32_t n = 0; n < in->input_count; n++)
            if (in->inputs[n] != DVT_NONE)
                use(p, in, in->inputs[n], false, a->tensor_devices, writers);
        for (uint32_t n = 0; n < in->output_count; n++)
            if (in->outputs[n] != DVT_NONE)
                use(p, in, in->outputs[n], true, a->tensor_devices, writers);
    }
    free(writers);
    return DVT_OK;
}

static dvt_plugin *plugin_of(const dvt_artifact *a, uint32_t buffer)
{
    uint32_t device = a->tensor_devices != NULL ? a->tensor_devices[buffer] : 0;
    return device != 0 && device != DVT_NONE && a->devices != NULL
               ? a->devices[device - 1].plugin
               : NULL;
}

dvt_plugin *dvt_input_plugin(const dvt_artifact *a, size_t index)
{
    return index < a->program.input_count ? plugin_of(a, a->program.inputs[index]) : NULL;
}

dvt_plugin *dvt_output_plugin(const dvt_artifact *a, size_t index)
{
    return index < a->program.output_count ? plugin_of(a, a->program.outputs[index]) : NULL;
}

/* ---- those of one call ---- */

dvt_status dvt_device_tensor_check(const dvt_artifact *a, uint32_t buffer, const dvt_tensor *t,
                                   const char *what, uint32_t number, dvt_error *error)
{
    uint32_t device = a->tensor_devices != NULL ? a->tensor_devices[buffer] : DVT_NONE;
    const dvt_buffer *given = t->data;
    if (t->device.type != DVT_DEVICE_BUFFER || t->device.id != 0 || given == NULL)
        return dvt_fail(error, DVT_ERROR_GUARD,
                        "%s %u is on a device of DLPack type %d, expected the CPU, or a "
                        "dvt_buffer of DVT_DEVICE_BUFFER",
                        what, number, t->device.type);
    if (device == DVT_NONE || device == 0)
        return dvt_fail(error, DVT_ERROR_GUARD,
                        "%s %u is on a device, and the program uses it on the host: give "
                        "memory of the host",
                        what, number);
    return a->devices[device - 1].plugin == given->plugin
               ? DVT_OK
               : dvt_fail(error, DVT_ERROR_GUARD,
                          "%s %u is on another device than the one that uses it", what, number);
}

static dvt_status bind(const frame *f, uint32_t buffer, const dvt_tensor *t,
                       device_tensor *made, const char *what, uint32_t number, dvt_error *error)
{
    const dvt_tensor *expected = &f->tensors[buffer];
    const dvt_buffer *given = t->data;
    int64_t row = 1;
    bool fits = true;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        int64_t stride = t->strides != NULL ? t->strides[i] : row;
        fits = fits && (t->shape[i] == 1 || stride == expected->strides[i]);
        row *= t->shape[i]; /* no overflow: the shape is the expected one, which was checked */
    }
    if (!fits)
        return dvt_fail(error, DVT_ERROR_GUARD,
                        "%s %u is on a device, and not laid out as the program has it", what,
                        number);
    uint64_t bytes = dvt_buffer_bytes(given);
    if (t->byte_offset > bytes || f->extents[buffer] > bytes - t->byte_offset)
        return dvt_fail(error, DVT_ERROR_GUARD, "%s %u reaches beyond its buffer of %llu bytes",
                        what, number, (unsigned long long)bytes);
    *made = (device_tensor){(dvt_buffer *)t->data, t->byte_offset, false};
    return DVT_OK;
}

dvt_status dvt_device_input(const dvt_artifact *a, frame *f, uint32_t n, const dvt_tensor *t,
                            dvt_error *error)
{
    return bind(f, a->program.inputs[n], t, &f->devices->inputs[n], "input", n, error);
}

dvt_status dvt_device_output(const dvt_artifact *a, frame *f, uint32_t n, const dvt_tensor *t,
                             dvt_error *error)
{
    const dvt_buffer *given = t->data;
    for (uint32_t i = 0; i < a->program.input_count; i++)
        if (f->devices->inputs[i].buffer != NULL &&
            f->devices->inputs[i].buffer->memory.memory == given->memory.memory)
            return dvt_fail(error, DVT_ERROR_ARGUMENT,
                            "output %u and input %u are in one buffer of a device", n, i);
    return bind(f, a->program.outputs[n], t, &f->devices->outputs[n], "output", n, error);
}

void dvt_device_tensors_clear(const dvt_artifact *a, frame *f)
{
    for (uint32_t i = 0; f->devices != NULL && i < a->program.input_count; i++)
        f->devices->inputs[i].buffer = NULL;
    for (uint32_t i = 0; f->devices != NULL && i < a->program.output_count; i++)
        f->devices->outputs[i].buffer = NULL;
}
