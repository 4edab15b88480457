/* Operations as commands. A kernel's arguments travel as numbers in an order of its own. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static const dvp_kernel KERNELS[] = {
#define X(name) {#name, 1, SIM_##name},
    SIM_KERNELS(X)
#undef X
};

dvp_status sim_query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                        dvp_error *error)
{
    (void)device;
    dvp_status status = sim_fault(SIM_AT_query_op, error);
    if (status != DVP_OK)
        return status;
    int32_t kernel = 0, variant = 0;
    answer->reason = sim_judge(op, &kernel, &variant);
    answer->supported = answer->reason == NULL;
    answer->kernel = KERNELS[kernel].name;
    answer->min_version = 1;
    return DVP_OK;
}

dvp_status sim_find_kernel(dvp_device *device, const char *name, uint32_t min_version,
                           uint32_t max_version, const dvp_kernel **kernel, uint32_t *version,
                           dvp_error *error)
{
    (void)device;
    dvp_status status = sim_fault(SIM_AT_find_kernel, error);
    if (status != DVP_OK)
        return status;
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (strcmp(KERNELS[i].name, name) == 0 && min_version <= 1 &&
            (max_version == 0 || max_version >= 1)) {
            *kernel = &KERNELS[i];
            *version = 1;
            return DVP_OK;
        }
    return sim_fail(error, DVP_UNSUPPORTED, "there is no kernel '%s' of version %u to %u", name,
                    min_version, max_version);
}

/* ---- arguments ---- */

static double number(const dvp_op *op, const char *name, double otherwise)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    if (a != NULL && a->kind == DVP_ATTR_INT)
        return (double)a->value.i;
    return a != NULL && a->kind == DVP_ATTR_FLOAT ? a->value.f : otherwise;
}

static int64_t integer(const dvp_op *op, const char *name, int64_t otherwise)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    return a != NULL && a->kind == DVP_ATTR_INT ? a->value.i : otherwise;
}

/* Two numbers of a list, of which the first stands for both where it is alone. */
static void pair(const dvp_op *op, const char *name, const int64_t otherwise[2], int64_t *two)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    bool some = a != NULL && a->kind == DVP_ATTR_INTS && a->count > 0;
    two[0] = some ? a->value.ints[0] : otherwise[0];
    two[1] = some ? a->value.ints[a->count > 1] : otherwise[1];
}

static int64_t from_front(int64_t dim, int32_t rank)
{
    return dim < 0 ? dim + rank : dim;
}

static void put_dims(const dvp_op *op, sim_command *c)
{
    const dvp_attribute *dims = sim_attribute_of(op, "dim");
    c->ints[0] = 0; /* a bit for each dimension that is reduced; none is named: all are */
    for (uint32_t i = 0; dims != NULL && dims->kind == DVP_ATTR_INTS && i < dims->count; i++)
        c->ints[0] |= (int64_t)1 << (from_front(dims->value.ints[i], op->inputs->ndim) & 31);
    if (c->ints[0] == 0)
        c->ints[0] = ((int64_t)1 << op->inputs->ndim) - 1;
    c->ints[1] = integer(op, "keepdim", 0);
}

static void put_windows(const dvp_op *op, sim_command *c)
{
    static const int64_t zero[2] = {0, 0}, one[2] = {1, 1};
    pair(op, "kernel_size", one, c->ints);
    pair(op, "stride", c->ints, c->ints + 2);
    pair(op, "padding", zero, c->ints + 4);
    pair(op, "dilation", one, c->ints + 6);
    c->ints[8] = c->kernel == SIM_convolution ? integer(op, "groups", 1)
                                              : integer(op, "count_include_pad", 1);
}

static void put_arguments(const dvp_op *op, sim_command *c)
{
    int32_t rank = op->input_count ? op->inputs->ndim : 0;
    const dvp_attribute *text;
    switch (c->kernel) {
    case SIM_unary:
        text = sim_attribute_of(op, "approximate");
        c->ints[0] = text != NULL && text->kind == DVP_ATTR_TEXT &&
                     strcmp(text->value.text, "tanh") == 0;
        break;
    case SIM_binary:
    case SIM_compare:
        c->ints[0] = op->input_count == 2 ? 0 : sim_attribute_of(op, "self") != NULL ? 1 : 2;
        c->floats[0] = number(op, "self", number(op, "other", number(op, "exponent", 0)));
        c->floats[1] = number(op, "alpha", 1);
        break;
    case SIM_reduce:
        put_dims(op, c);
        break;
    case SIM_matmul:
    case SIM_quantized_matmul:
        c->floats[0] = number(op, "alpha", 1);
        c->floats[1] = number(op, "beta", 1);
        break;
    case SIM_layer_norm:
        text = sim_attribute_of(op, "normalized_shape");
        c->ints[0] = text == NULL ? 0 : text->count;
        c->floats[0] = number(op, "eps", 1e-5);
        break;
    case SIM_convolution:
    case SIM_max_pool:
    case SIM_avg_pool:
        put_windows(op, c);
        break;
    case SIM_fill:
        c->floats[0] = number(op, "fill_value", number(op, "s", 0));
        break;
    case SIM_slice_scatter: {
        int64_t dim = from_front(integer(op, "dim", 0), rank) & 31;
        int64_t size = dim < rank ? op->inputs->shape[dim] : 0;
        int64_t start = integer(op, "start", 0);
        start += start < 0 ? size : 0;
        c->ints[0] = dim;
        c->ints[1] = start < 0 ? 0 : start > size ? size : start;
        c->ints[2] = integer(op, "step", 1);
        break;
    }
    default:
        c->ints[0] = from_front(integer(op, "dim", 0), rank);
    }
}

/* ---- tensors ---- */

dvp_status sim_put_tensor(dvp_device *device, const dvp_tensor *t, bool prepared,
                          sim_tensor *made, dvp_error *error)
{
    made->rank = t->ndim;
    made->scales = made->zeros = -1;
    if (t->ndim < 0)
        return DVP_OK;
    made->code = t->dtype.code;
    made->bits = t->dtype.bits;
    made->prepared = prepared;
    for (int32_t i = 0; i < t->ndim; i++) {
        made->shape[i] = t->shape[i];
        made->strides[i] = t->strides[i];
    }
    uint64_t offset = prepared ? 0 : t->byte_offset;
    return sim_place(device, t->data, offset, &made->address, &made->room, error) ? DVP_OK
                                                                                  : DVP_INVALID;
}

static bool is_prepared(const dvp_op *op, uint32_t input)
{
    bool known = op->struct_size >= offsetof(dvp_op, input_flags) + sizeof op->input_flags;
    return known && op->input_flags != NULL && op->input_flags[input] & DVP_OPERAND_PREPARED;
}

static dvp_status put_operation(dvp_device *device, const dvp_op *op, sim_command *c,
                                dvp_error *error)
{
    const char *objection = sim_judge(op, &c->kernel, &c->variant);
    if (objection != NULL)
        return sim_fail(error, DVP_INVALID, "%s", objection);
    if (op->output_count + op->input_count > SIM_TENSORS)
        return sim_fail(error, DVP_INVALID, "more than %d tensors", SIM_TENSORS);
    c->outputs = op->output_count;
    c->inputs = op->input_count;
    dvp_status status = DVP_OK;
    for (uint32_t i = 0; i < c->outputs && status == DVP_OK; i++)
        status = op->outputs[i].ndim > SIM_RANK
                     ? sim_fail(error, DVP_INVALID, "a result has more than 6 dimensions")
                     : sim_put_tensor(device, &op->outputs[i], false, &c->tensors[i], error);
    for (uint32_t i = 0; i < c->inputs && status == DVP_OK; i++)
        status = sim_put_tensor(device, &op->inputs[i], is_prepared(op, i),
                                &c->tensors[c->outputs + i], error);
    put_arguments(op, c);
    return status == DVP_OK ? sim_put_parameters(device, op, c, error) : status;
}

dvp_status sim_execute(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                       const dvp_op *op, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_execute, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    sim_command command = {.kind = SIM_KERNEL};
    if (status == DVP_OK)
        status = put_operation(device, op, &command, error);
    if (status == DVP_OK && command.kernel != kernel->number)
        status = sim_fail(error, DVP_INVALID, "'%s' is not the kernel of %s", kernel->name,
                          op->name);
    if (status != DVP_OK)
        return status;
    return sim_submit(stream, &command, NULL, error);
}

/* ---- matrices in tiles ---- */

static int64_t tiles(int64_t size)
{
    return (size + SIM_TILE - 1) / SIM_TILE;
}

/* The second factor of a product may lie in tiles: how many bytes those take, 0: it may not. */
static uint64_t tiled_bytes(const dvp_op *op, uint32_t input)
{
    int32_t kernel = 0, variant = 0;
    const dvp_tensor *t = &op->inputs[input];
    if (sim_judge(op, &kernel, &variant) != NULL || kernel != SIM_matmul ||
        input + 1 != op->input_count || t->ndim != 2 || t->shape[0] <= 0 || t->shape[1] <= 0 ||
        t->shape[0] > INT32_MAX || t->shape[1] > INT32_MAX)
        return 0;
    return (uint64_t)tiles(t->shape[0]) * (uint64_t)tiles(t->shape[1]) * SIM_TILE * SIM_TILE *
           4;
}

/* The tiles as bytes for a file: the same that the device makes by itself. */
dvp_status sim_constant_pack(dvp_device *device, const dvp_op *op, uint32_t input,
                             const void **packed, uint64_t *bytes, dvp_error *error)
{
    (void)device;
    *packed = NULL;
    *bytes = tiled_bytes(op, input);
    dvp_status status = sim_fault(SIM_AT_constant_pack, error);
    if (status != DVP_OK || *bytes == 0)
        return status;
    const dvp_tensor *t = &op->inputs[input];
    const float *from = (const float *)(const void *)((const char *)t->data + t->byte_offset);
    float *to = calloc(1, *bytes);
    if (to == NULL)
        return sim_fail(error, DVP_NO_MEMORY, "no memory for tiles");
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            int64_t tile = i / SIM_TILE * tiles(t->shape[1]) + j / SIM_TILE;
            to[(tile * SIM_TILE + i % SIM_TILE) * SIM_TILE + j % SIM_TILE] =
                from[i * t->strides[0] + j * t->strides[1]];
        }
    *packed = to;
    return DVP_OK;
}

void sim_packed_free(dvp_device *device, const void *packed)
{
    (void)device;
    free((void *)(uintptr_t)packed);
}

dvp_status sim_constant_accept(dvp_device *device, const dvp_op *op, uint32_t input,
                               const void *packed, uint64_t bytes, dvp_error *error)
{
    (void)device;
    (void)packed; /* any numbers will do */
    dvp_status status = sim_fault(SIM_AT_constant_accept, error);
    if (status != DVP_OK)
        return status;
    uint64_t wanted = tiled_bytes(op, input);
    if (wanted == 0 || bytes != wanted)
        return sim_fail(error, DVP_INVALID, "%llu bytes of tiles, expected %llu",
                        (unsigned long long)bytes, (unsigned long long)wanted);
    return DVP_OK;
}

/* The second factor of a product, if it is a constant: cut into tiles, padded with zeros. */
dvp_status sim_constant_prepare(dvp_device *device, dvp_stream *stream, const dvp_op *op,
                                uint32_t input, void **memory, dvp_error *error)
{
    *memory = NULL;
    dvp_status status = sim_fault(SIM_AT_constant_prepare, error);
    sim_command command = {.kind = SIM_PREPARE};
    const dvp_tensor *t = &op->inputs[input];
    uint64_t bytes = tiled_bytes(op, input);
    if (status != DVP_OK || bytes == 0)
        return status;
    status = sim_buffer_alloc(device, bytes, memory, error);
    if (status != DVP_OK)
        return status;
    command.inputs = command.outputs = 1;
    status = sim_put_tensor(device, t, false, &command.tensors[1], error);
    if (status == DVP_OK) {
        command.tensors[0] = command.tensors[1];
        status = sim_place(device, *memory, 0, &command.tensors[0].address,
                           &command.tensors[0].room, error)
                     ? sim_submit(stream, &command, NULL, error)
                     : DVP_INVALID;
    }
    if (status != DVP_OK) {
        sim_buffer_free(device, *memory);
        *memory = NULL;
    }
    return status;
}
