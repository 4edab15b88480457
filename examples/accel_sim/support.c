/* Which operations the device has kernels for. */
#include "driver.h"

#include <string.h>

enum rule { FLOATS, COMPARED, MOVED, CHOSEN, LOOKED_UP, PLACED, POOLED, CONVERTED };

static const struct {
    const char *op;
    int32_t kernel, variant;
    uint32_t least, most; /* tensors it takes */
    enum rule rule;
} OPS[] = {
    {"aten.relu.default", SIM_unary, SIM_RELU, 1, 1, FLOATS},
    {"aten.neg.default", SIM_unary, SIM_NEG, 1, 1, FLOATS},
    {"aten.exp.default", SIM_unary, SIM_EXP, 1, 1, FLOATS},
    {"aten.log.default", SIM_unary, SIM_LOG, 1, 1, FLOATS},
    {"aten.tanh.default", SIM_unary, SIM_TANH, 1, 1, FLOATS},
    {"aten.sigmoid.default", SIM_unary, SIM_SIGMOID, 1, 1, FLOATS},
    {"aten.sqrt.default", SIM_unary, SIM_SQRT, 1, 1, FLOATS},
    {"aten.rsqrt.default", SIM_unary, SIM_RSQRT, 1, 1, FLOATS},
    {"aten.abs.default", SIM_unary, SIM_ABS, 1, 1, FLOATS},
    {"aten.erf.default", SIM_unary, SIM_ERF, 1, 1, FLOATS},
    {"aten.gelu.default", SIM_unary, SIM_GELU, 1, 1, FLOATS},
    {"aten.silu.default", SIM_unary, SIM_SILU, 1, 1, FLOATS},
    {"aten.reciprocal.default", SIM_unary, SIM_RECIPROCAL, 1, 1, FLOATS},
    {"aten.sin.default", SIM_unary, SIM_SIN, 1, 1, FLOATS},
    {"aten.cos.default", SIM_unary, SIM_COS, 1, 1, FLOATS},
    {"aten.add.Tensor", SIM_binary, SIM_ADD, 1, 2, FLOATS},
    {"aten.add.Scalar", SIM_binary, SIM_ADD, 1, 1, FLOATS},
    {"aten.sub.Tensor", SIM_binary, SIM_SUB, 1, 2, FLOATS},
    {"aten.sub.Scalar", SIM_binary, SIM_SUB, 1, 1, FLOATS},
    {"aten.mul.Tensor", SIM_binary, SIM_MUL, 1, 2, FLOATS},
    {"aten.mul.Scalar", SIM_binary, SIM_MUL, 1, 1, FLOATS},
    {"aten.div.Tensor", SIM_binary, SIM_DIV, 1, 2, FLOATS},
    {"aten.div.Scalar", SIM_binary, SIM_DIV, 1, 1, FLOATS},
    {"aten.pow.Tensor_Scalar", SIM_binary, SIM_POW, 1, 1, FLOATS},
    {"aten.maximum.default", SIM_binary, SIM_MAX, 2, 2, FLOATS},
    {"aten.minimum.default", SIM_binary, SIM_MIN, 2, 2, FLOATS},
    {"aten.eq.Scalar", SIM_compare, SIM_EQ, 1, 1, COMPARED},
    {"aten.eq.Tensor", SIM_compare, SIM_EQ, 2, 2, COMPARED},
    {"aten.ne.Scalar", SIM_compare, SIM_NE, 1, 1, COMPARED},
    {"aten.lt.Scalar", SIM_compare, SIM_LT, 1, 1, COMPARED},
    {"aten.lt.Tensor", SIM_compare, SIM_LT, 2, 2, COMPARED},
    {"aten.le.Scalar", SIM_compare, SIM_LE, 1, 1, COMPARED},
    {"aten.le.Tensor", SIM_compare, SIM_LE, 2, 2, COMPARED},
    {"aten.gt.Scalar", SIM_compare, SIM_GT, 1, 1, COMPARED},
    {"aten.gt.Tensor", SIM_compare, SIM_GT, 2, 2, COMPARED},
    {"aten.ge.Scalar", SIM_compare, SIM_GE, 1, 1, COMPARED},
    {"aten.ge.Tensor", SIM_compare, SIM_GE, 2, 2, COMPARED},
    {"aten.where.self", SIM_where, 0, 3, 3, CHOSEN},
    {"aten.clone.default", SIM_copy, 0, 1, 1, MOVED},
    {"aten._to_copy.default", SIM_copy, 0, 1, 1, MOVED},
    {"aten.sum.dim_IntList", SIM_reduce, SIM_SUM, 1, 1, FLOATS},
    {"aten.sum.default", SIM_reduce, SIM_SUM, 1, 1, FLOATS},
    {"aten.mean.dim", SIM_reduce, SIM_MEAN, 1, 1, FLOATS},
    {"aten.amax.default", SIM_reduce, SIM_AMAX, 1, 1, FLOATS},
    {"aten.mm.default", SIM_matmul, 0, 2, 2, FLOATS},
    {"aten.addmm.default", SIM_matmul, 0, 3, 3, FLOATS},
    {"aten.bmm.default", SIM_matmul, 0, 2, 2, FLOATS},
    {"aten._softmax.default", SIM_softmax, 0, 1, 1, FLOATS},
    {"aten._log_softmax.default", SIM_softmax, 1, 1, 1, FLOATS},
    {"aten.native_layer_norm.default", SIM_layer_norm, 0, 3, 3, FLOATS},
    {"aten.embedding.default", SIM_embedding, 0, 2, 2, LOOKED_UP},
    {"aten.index_select.default", SIM_gather, 0, 2, 2, LOOKED_UP},
    {"aten.convolution.default", SIM_convolution, 0, 3, 3, FLOATS},
    {"aten.max_pool2d_with_indices.default", SIM_max_pool, 0, 1, 1, POOLED},
    {"aten.avg_pool2d.default", SIM_avg_pool, 0, 1, 1, FLOATS},
    {"aten.cat.default", SIM_cat, 0, 1, SIM_TENSORS - 1, FLOATS},
    {"aten.index_copy.default", SIM_index_copy, 0, 3, 3, PLACED},
    {"aten.slice_scatter.default", SIM_slice_scatter, 0, 2, 2, FLOATS},
    {"aten.reshape.default", SIM_copy, 0, 1, 1, MOVED}, /* those that are no views */
    {"aten.full.default", SIM_fill, 0, 0, 0, FLOATS},
    {"aten.scalar_tensor.default", SIM_fill, 0, 0, 0, FLOATS},
    {"aten.split_with_sizes.default", SIM_split, 0, 1, 1, FLOATS},
    {"quantized_decomposed.quantize_per_tensor.default", SIM_convert, 0, 1, 1, CONVERTED},
    {"quantized_decomposed.dequantize_per_tensor.default", SIM_convert, 0, 1, 1, CONVERTED},
    {"quantized_decomposed.quantize_per_channel.default", SIM_convert, 0, 3, 3, CONVERTED},
    {"quantized_decomposed.dequantize_per_channel.default", SIM_convert, 0, 3, 3, CONVERTED},
    {"quantized_decomposed.dequantize_per_channel_group.default", SIM_convert, 0, 3, 3,
     CONVERTED},
};

const dvp_attribute *sim_attribute_of(const dvp_op *op, const char *name)
{
    for (uint32_t i = 0; i < op->attribute_count; i++)
        if (strcmp(op->attributes[i].name, name) == 0)
            return &op->attributes[i];
    return NULL;
}

static bool is_dtype(const dvp_tensor *t, uint8_t code, uint8_t bits)
{
    return t->ndim < 0 || (t->dtype.code == code && t->dtype.bits == bits);
}

static bool is_float(const dvp_tensor *t)
{
    return is_dtype(t, DVP_FLOAT, 32);
}

static bool can_convert(const dvp_tensor *t)
{
    return is_float(t) || is_dtype(t, DVP_BFLOAT, 16) || is_dtype(t, DVP_FLOAT8_E4M3FN, 8) ||
           is_dtype(t, DVP_FLOAT8_E5M2, 8);
}

static bool same_dtype(const dvp_tensor *a, const dvp_tensor *b)
{
    return is_dtype(a, b->dtype.code, b->dtype.bits);
}

/* Whether the operands have the types of a rule; results are looked at where they are known. */
static bool dtypes_fit(enum rule rule, const dvp_op *op)
{
    const dvp_tensor *in = op->inputs, *out = op->output_count ? op->outputs : NULL;
    switch (rule) {
    case COMPARED:
        return (is_float(in) || is_dtype(in, DVP_INT, 64)) &&
               (op->input_count < 2 || same_dtype(in, in + 1)) &&
               (out == NULL || is_dtype(out, DVP_BOOL, 8));
    case CHOSEN:
        return is_dtype(in, DVP_BOOL, 8) && is_float(in + 1) && is_float(in + 2);
    case MOVED:
        return (can_convert(in) && (out == NULL || can_convert(out))) ||
               (out != NULL && same_dtype(in, out));
    case LOOKED_UP:
        return is_float(in) && is_dtype(in + 1, DVP_INT, 64);
    case PLACED:
        return is_float(in) && is_dtype(in + 1, DVP_INT, 64) && is_float(in + 2);
    case POOLED:
        return is_float(in);
    case CONVERTED:
        return sim_judge_conversion(op) == NULL;
    case FLOATS:
        break;
    }
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!is_float(in + i))
            return false;
    return out == NULL || is_float(out);
}

static bool is_known(const dvp_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == DVP_DYNAMIC || t->strides[i] == DVP_DYNAMIC)
            return false;
    return true;
}

static bool is_set(const dvp_op *op, const char *name)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    return a != NULL && a->kind == DVP_ATTR_INT && a->value.i != 0;
}

static bool is_number(const dvp_op *op, const char *name)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    return a != NULL && (a->kind == DVP_ATTR_INT || a->kind == DVP_ATTR_FLOAT);
}

static bool is_given(const dvp_op *op, const char *name)
{
    const dvp_attribute *a = sim_attribute_of(op, name);
    return a != NULL && a->kind != DVP_ATTR_NONE;
}

/* What else a kernel cannot do, or NULL. */
static const char *object(const dvp_op *op, int32_t kernel)
{
    const dvp_tensor *in = op->inputs;
    switch (kernel) {
    case SIM_binary:
    case SIM_compare:
        if (op->input_count == 1 && !is_number(op, "other") && !is_number(op, "self") &&
            !is_number(op, "exponent"))
            return "an operand is neither a tensor nor a number";
        return NULL;
    case SIM_softmax:
        return is_set(op, "half_to_float") ? "half_to_float is not implemented"
               : in->ndim == 0             ? "softmax needs a dimension"
                                           : NULL;
    case SIM_layer_norm:
        return is_known(in) ? NULL : "layer norm needs static shapes";
    case SIM_reduce:
        return is_given(op, "dtype") ? "a reduction to another type is not implemented" : NULL;
    case SIM_convolution:
        return in->ndim != 4              ? "only two-dimensional convolutions of batches"
               : is_set(op, "transposed") ? "transposed convolutions are not implemented"
                                          : NULL;
    case SIM_max_pool:
    case SIM_avg_pool:
        return in->ndim != 4                      ? "only two-dimensional pooling of batches"
               : is_given(op, "divisor_override") ? "divisor_override is not implemented"
                                                  : NULL;
    case SIM_split:
        return op->output_count >= SIM_TENSORS ? "too many results" : NULL;
    case SIM_embedding:
        return is_set(op, "sparse") ? "sparse gradients are not implemented" : NULL;
    case SIM_cat:
        for (uint32_t i = 1; i < op->input_count; i++)
            if (op->inputs[i].ndim != in->ndim)
                return "cat of tensors of other ranks";
        return in->ndim == 0 ? "cat needs a dimension" : NULL;
    case SIM_index_copy:
    case SIM_slice_scatter:
    case SIM_gather:
        return in->ndim == 0 ? "it needs a dimension" : NULL;
    default:
        return NULL;
    }
}

const char *sim_judge(const dvp_op *op, int32_t *kernel, int32_t *variant)
{
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        if (strcmp(OPS[i].op, op->name) != 0)
            continue;
        *kernel = OPS[i].kernel;
        *variant = OPS[i].variant;
        if (op->input_count < OPS[i].least || op->input_count > OPS[i].most)
            return "it takes another number of tensors";
        bool optional =
            *kernel == SIM_layer_norm || *kernel == SIM_convolution || *kernel == SIM_convert;
        for (uint32_t k = 0; k < op->input_count; k++)
            if (op->inputs[k].ndim > SIM_RANK ||
                (op->inputs[k].ndim < 0 && !(optional && k > 0)))
                return "an operand is missing, or has more than 6 dimensions";
        if (*kernel == SIM_matmul && sim_is_quantized(op)) {
            *kernel = SIM_quantized_matmul;
            return sim_judge_quantized(op);
        }
        if (sim_is_quantized(op))
            return "it does not compute with quantised tensors";
        if (!dtypes_fit(OPS[i].rule, op))
            return "an element type that the kernel does not compute with";
        return object(op, *kernel);
    }
    return "there is no kernel for it";
}
