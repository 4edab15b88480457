/* The kernels, for float32 and any strides, and which operations each of them runs. */
#include "accel.h"

#include <math.h>
#include <string.h>

const dvp_attribute *accel_attribute(const dvp_op *op, const char *name)
{
    for (uint32_t i = 0; i < op->attribute_count; i++)
        if (strcmp(op->attributes[i].name, name) == 0)
            return &op->attributes[i];
    return NULL;
}

static double number(const dvp_op *op, const char *name, double otherwise)
{
    const dvp_attribute *a = accel_attribute(op, name);
    if (a == NULL || (a->kind != DVP_ATTR_INT && a->kind != DVP_ATTR_FLOAT))
        return otherwise;
    return a->kind == DVP_ATTR_INT ? (double)a->value.i : a->value.f;
}

/* ---- tensors on the device ---- */

static int64_t element_count(const dvp_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

/* The first element, after checking that all of them lie in the buffer. */
static float *elements(dvp_device *device, const dvp_tensor *t, dvp_error *error)
{
    int64_t last = 0;
    for (int32_t i = 0; i < t->ndim; i++)
        last += t->shape[i] > 0 ? (t->shape[i] - 1) * t->strides[i] : 0;
    uint64_t bytes = element_count(t) == 0 ? 0 : (uint64_t)(last + 1) * sizeof(float);
    return (float *)(void *)accel_memory(device, t->data, t->byte_offset, bytes, error);
}

/* A tensor's strides over the dimensions of a larger one: 0 where it is repeated. */
static void broadcast(const dvp_tensor *t, const dvp_tensor *over, int64_t *strides)
{
    int32_t missing = over->ndim - t->ndim;
    for (int32_t i = 0; i < over->ndim; i++) {
        bool repeated = i < missing || t->shape[i - missing] == 1;
        strides[i] = repeated ? 0 : t->strides[i - missing];
    }
}

static int64_t offset_of(int64_t number, const dvp_tensor *over, const int64_t *strides)
{
    int64_t offset = 0;
    for (int32_t i = over->ndim - 1; i >= 0; i--) {
        offset += number % over->shape[i] * strides[i];
        number /= over->shape[i];
    }
    return offset;
}

/* ---- elementwise ---- */

static dvp_status relu(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    const dvp_tensor *x = op->inputs, *y = op->outputs;
    const float *from = elements(device, x, error);
    float *to = elements(device, y, error);
    if (from == NULL || to == NULL)
        return DVP_INVALID;
    for (int64_t n = 0, count = element_count(y); n < count; n++) {
        float value = from[offset_of(n, y, x->strides)];
        to[offset_of(n, y, y->strides)] = value < 0 ? 0 : value; /* a NaN stays one */
    }
    return DVP_OK;
}

static dvp_status binary(dvp_device *device, const dvp_op *op, bool is_add, dvp_error *error)
{
    const dvp_tensor *y = op->outputs;
    const float *a = elements(device, &op->inputs[0], error);
    const float *b = a == NULL ? NULL : elements(device, &op->inputs[1], error);
    float *to = b == NULL ? NULL : elements(device, y, error);
    if (to == NULL)
        return DVP_INVALID;
    int64_t left[MAX_RANK], right[MAX_RANK];
    broadcast(&op->inputs[0], y, left);
    broadcast(&op->inputs[1], y, right);
    float alpha = (float)number(op, "alpha", 1);
    for (int64_t n = 0, count = element_count(y); n < count; n++) {
        float p = a[offset_of(n, y, left)], q = b[offset_of(n, y, right)];
        to[offset_of(n, y, y->strides)] = is_add ? p + alpha * q : p * q;
    }
    return DVP_OK;
}

static dvp_status add(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    return binary(device, op, true, error);
}

static dvp_status mul(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    return binary(device, op, false, error);
}

/* ---- matrix products: mm, addmm and bmm ---- */

typedef struct {
    const float *a, *b, *c; /* c: what is added, or NULL */
    float *y;
    int64_t a_strides[2], b_strides[2], c_strides[2], y_strides[2];
    int64_t rows, columns, inner;
    float alpha, beta;
} product;

static void multiply(const product *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            const float *a = p->a + i * p->a_strides[0], *b = p->b + j * p->b_strides[1];
            double sum = 0;
            for (int64_t k = 0; k < p->inner; k++)
                sum += (double)a[k * p->a_strides[1]] * (double)b[k * p->b_strides[0]];
            float value = (float)(p->alpha * sum);
            if (p->c != NULL && p->beta != 0) /* 0 times NaN counts as 0 here */
                value += p->beta * p->c[i * p->c_strides[0] + j * p->c_strides[1]];
            p->y[i * p->y_strides[0] + j * p->y_strides[1]] = value;
        }
}

static dvp_status read_product(dvp_device *device, const dvp_op *op, bool adds, product *p,
                               dvp_error *error)
{
    const dvp_tensor *a = &op->inputs[adds], *b = &op->inputs[adds + 1], *y = op->outputs;
    int32_t last = a->ndim - 1;
    p->a = elements(device, a, error);
    p->b = p->a == NULL ? NULL : elements(device, b, error);
    p->c = p->b == NULL || !adds ? NULL : elements(device, op->inputs, error);
    p->y = p->b == NULL || (adds && p->c == NULL) ? NULL : elements(device, y, error);
    if (p->y == NULL)
        return DVP_INVALID;
    for (int32_t i = 0; i < 2; i++) {
        p->a_strides[i] = a->strides[last - 1 + i];
        p->b_strides[i] = b->strides[last - 1 + i];
        p->y_strides[i] = y->strides[last - 1 + i];
    }
    if (adds)
        broadcast(op->inputs, y, p->c_strides);
    p->rows = a->shape[last - 1];
    p->inner = a->shape[last];
    p->columns = b->shape[last];
    p->alpha = (float)number(op, "alpha", 1);
    p->beta = (float)number(op, "beta", 1);
    return DVP_OK;
}

static dvp_status matmul(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    product p = {0};
    bool adds = op->input_count == 3;
    dvp_status status = read_product(device, op, adds, &p, error);
    if (status != DVP_OK)
        return status;
    const dvp_tensor *a = &op->inputs[adds], *b = &op->inputs[adds + 1], *y = op->outputs;
    bool batched = a->ndim == 3;
    for (int64_t n = 0; n < (batched ? a->shape[0] : 1); n++) {
        multiply(&p);
        p.a += batched ? a->strides[0] : 0;
        p.b += batched ? b->strides[0] : 0;
        p.y += batched ? y->strides[0] : 0;
    }
    return DVP_OK;
}

/* ---- rows: softmax and layer norm ---- */

static dvp_status softmax(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    const dvp_tensor *x = op->inputs, *y = op->outputs;
    const float *from = elements(device, x, error);
    float *to = from == NULL ? NULL : elements(device, y, error);
    if (to == NULL)
        return DVP_INVALID;
    int64_t dim = (int64_t)number(op, "dim", -1);
    dim += dim < 0 ? x->ndim : 0;
    int64_t size = x->shape[dim], in = x->strides[dim], out = y->strides[dim];
    for (int64_t n = 0, count = element_count(x); n < count; n++) {
        int64_t inner = 1;
        for (int32_t i = (int32_t)dim + 1; i < x->ndim; i++)
            inner *= x->shape[i];
        if (n / inner % size != 0) /* not the first of its row */
            continue;
        const float *row = from + offset_of(n, x, x->strides);
        float *result = to + offset_of(n, x, y->strides), most = -INFINITY;
        double sum = 0;
        for (int64_t k = 0; k < size; k++)
            most = row[k * in] > most || isnan(row[k * in]) ? row[k * in] : most;
        for (int64_t k = 0; k < size; k++)
            sum += exp((double)row[k * in] - (double)most);
        for (int64_t k = 0; k < size; k++)
            result[k * out] = (float)(exp((double)row[k * in] - (double)most) / sum);
    }
    return DVP_OK;
}

/* native_layer_norm over contiguous rows: the result, each row's mean, and 1 / its deviation.
 */
static dvp_status layer_norm(dvp_device *device, const dvp_op *op, dvp_error *error)
{
    const dvp_attribute *shape = accel_attribute(op, "normalized_shape");
    int64_t size = 1, rows = element_count(op->inputs);
    for (uint32_t i = 0; i < shape->count; i++)
        size *= shape->value.ints[i];
    rows = size == 0 ? 0 : rows / size;
    const float *x = elements(device, op->inputs, error), *scale = NULL, *shift = NULL;
    float *out[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3 && x != NULL; i++)
        if ((out[i] = elements(device, &op->outputs[i], error)) == NULL)
            return DVP_INVALID;
    if (x == NULL ||
        (op->inputs[1].ndim >= 0 && !(scale = elements(device, &op->inputs[1], error))) ||
        (op->inputs[2].ndim >= 0 && !(shift = elements(device, &op->inputs[2], error))))
        return DVP_INVALID;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < size; k++)
            sum += (double)x[r * size + k];
        double mean = sum / (double)size;
        for (int64_t k = 0; k < size; k++)
            squares += ((double)x[r * size + k] - mean) * ((double)x[r * size + k] - mean);
        double rstd = 1 / sqrt(squares / (double)size + number(op, "eps", 1e-5));
        for (int64_t k = 0; k < size; k++)
            out[0][r * size + k] =
                (float)(((double)x[r * size + k] - mean) * rstd) * (scale ? scale[k] : 1) +
                (shift ? shift[k] : 0);
        out[1][r] = (float)mean;
        out[2][r] = (float)rstd;
    }
    return DVP_OK;
}

const dvp_kernel ACCEL_KERNELS[] = {
    {"matmul", 1, matmul},
    {"matmul", 2, matmul},
    {"relu", 1, relu},
    {"add", 1, add},
    {"mul", 1, mul},
    {"softmax", 1, softmax},
    {"layer_norm", 1, layer_norm},
    {NULL, 0, NULL},
};

/* ---- what is supported ---- */

static const struct {
    const char *op, *kernel;
    uint32_t inputs;
} OPS[] = {
    {"aten.mm.default", "matmul", 2},
    {"aten.addmm.default", "matmul", 3},
    {"aten.bmm.default", "matmul", 2},
    {"aten.relu.default", "relu", 1},
    {"aten.add.Tensor", "add", 2},
    {"aten.mul.Tensor", "mul", 2},
    {"aten._softmax.default", "softmax", 1},
    {"aten.native_layer_norm.default", "layer_norm", 3},
};

static bool is_contiguous(const dvp_tensor *t)
{
    int64_t expected = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != expected)
            return false;
        expected *= t->shape[i];
    }
    return true;
}

/* Why a tensor cannot be used, or NULL. */
static const char *objection(const dvp_tensor *t, bool dense)
{
    if (t->ndim < 0)
        return NULL;
    if (t->dtype.code != DVP_FLOAT || t->dtype.bits != 32)
        return "only float32 is implemented";
    if (t->ndim > MAX_RANK)
        return "more than 8 dimensions";
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == DVP_DYNAMIC || t->strides[i] == DVP_DYNAMIC)
            return dense ? "layer norm needs static shapes" : NULL;
    if (dense && element_count(t) == 0)
        return "layer norm needs elements";
    return dense && !is_contiguous(t) ? "layer norm needs contiguous rows" : NULL;
}

/* ---- do the shapes fit together? PyTorch's do; those of a file may be anything ---- */

static bool is_static(const dvp_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == DVP_DYNAMIC || t->strides[i] == DVP_DYNAMIC)
            return false;
    return true;
}

static bool same_shape(const dvp_tensor *a, const dvp_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static bool broadcasts(const dvp_tensor *t, const dvp_tensor *over)
{
    if (t->ndim < 0 || t->ndim > over->ndim)
        return false;
    for (int32_t i = 1; i <= t->ndim; i++)
        if (t->shape[t->ndim - i] != 1 && t->shape[t->ndim - i] != over->shape[over->ndim - i])
            return false;
    return true;
}

static bool product_fits(const dvp_op *op)
{
    const dvp_tensor *a = &op->inputs[op->input_count - 2],
                     *b = &op->inputs[op->input_count - 1], *y = op->outputs;
    int32_t last = a->ndim - 1;
    bool batched = strcmp(op->name, "aten.bmm.default") == 0;
    if (a->ndim != 2 + batched || b->ndim != a->ndim || y->ndim != a->ndim)
        return false;
    return (!batched || (a->shape[0] == b->shape[0] && a->shape[0] == y->shape[0])) &&
           a->shape[last] == b->shape[last - 1] && y->shape[last - 1] == a->shape[last - 1] &&
           y->shape[last] == b->shape[last] &&
           (op->input_count == 2 || broadcasts(op->inputs, y));
}

static bool softmax_fits(const dvp_op *op)
{
    const dvp_attribute *dim = accel_attribute(op, "dim");
    int32_t rank = op->inputs->ndim;
    return rank > 0 && same_shape(op->inputs, op->outputs) && dim != NULL &&
           dim->kind == DVP_ATTR_INT && dim->value.i >= -rank && dim->value.i < rank;
}

/* The rows are the last dimensions; weights have a row's size, statistics one a row. */
static bool norm_fits(const dvp_op *op)
{
    const dvp_tensor *x = op->inputs;
    const dvp_attribute *shape = accel_attribute(op, "normalized_shape");
    if (x->ndim < 0 || shape == NULL || shape->kind != DVP_ATTR_INTS ||
        shape->count > (uint32_t)x->ndim || !same_shape(x, op->outputs))
        return false;
    int64_t size = 1;
    for (uint32_t i = 0; i < shape->count; i++) {
        if (shape->value.ints[i] != x->shape[(uint32_t)x->ndim - shape->count + i])
            return false;
        size *= shape->value.ints[i];
    }
    for (int i = 1; i < 3; i++)
        if ((op->inputs[i].ndim >= 0 && element_count(&op->inputs[i]) != size) ||
            op->outputs[i].ndim < 0 ||
            element_count(&op->outputs[i]) * size != element_count(x))
            return false;
    return true;
}

static bool shapes_fit(const dvp_op *op, const char *kernel)
{
    bool norm = strcmp(kernel, "layer_norm") == 0;
    for (uint32_t i = 0; i < op->input_count; i++)
        if (op->inputs[i].ndim < 0 && !(norm && i > 0))
            return false;
    if (op->output_count == 0) /* not known yet */
        return true;
    if (op->output_count != (norm ? 3 : 1) || op->outputs->ndim < 0)
        return false;
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!is_static(&op->inputs[i]))
            return true; /* asked again when it is */
    for (uint32_t i = 0; i < op->output_count; i++)
        if (!is_static(&op->outputs[i]))
            return true;
    if (norm)
        return norm_fits(op);
    if (strcmp(kernel, "softmax") == 0)
        return softmax_fits(op);
    if (strcmp(kernel, "matmul") == 0)
        return product_fits(op);
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!broadcasts(&op->inputs[i], op->outputs))
            return false;
    return strcmp(kernel, "relu") != 0 || same_shape(op->inputs, op->outputs);
}

static const char *objection_to_op(const dvp_op *op, uint32_t inputs, bool dense)
{
    const char *why = NULL;
    if (op->input_count != inputs)
        return "an operand is a number";
    for (uint32_t i = 0; i < op->input_count && why == NULL; i++)
        why = objection(&op->inputs[i], dense);
    for (uint32_t i = 0; i < op->output_count && why == NULL; i++)
        why = objection(&op->outputs[i], dense);
    if (why == NULL && strcmp(op->name, "aten._softmax.default") == 0 && op->inputs->ndim == 0)
        why = "softmax needs a dimension";
    const dvp_attribute *half = accel_attribute(op, "half_to_float");
    return half != NULL && half->value.i ? "half_to_float is not implemented" : why;
}

void accel_answer(const dvp_op *op, dvp_answer *answer)
{
    answer->reason = "there is no kernel for it";
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        if (strcmp(OPS[i].op, op->name) != 0)
            continue;
        bool dense = strcmp(OPS[i].kernel, "layer_norm") == 0;
        answer->reason = objection_to_op(op, OPS[i].inputs, dense);
        if (answer->reason == NULL && !shapes_fit(op, OPS[i].kernel))
            answer->reason = "the shapes do not fit together";
        answer->supported = answer->reason == NULL;
        answer->kernel = OPS[i].kernel;
        answer->min_version = 1;
    }
}
