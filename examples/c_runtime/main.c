/* Runs an artifact from C: no Python, no PyTorch.
 *
 *     ./run model.dvt
 *
 * Inputs are filled with 0, 0.01, 0.02, … (whole numbers: zeros); dynamic sizes are 2. */
#include "dovetail.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_TENSORS 16
#define MAX_RANK    16

static size_t count_of(const int64_t *shape, int32_t rank)
{
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++)
        count *= (size_t)shape[i];
    return count;
}

static int fill_input(const dvt_tensor_info *info, int64_t *shape, dvt_tensor *input)
{
    if (info->ndim > MAX_RANK)
        return 0;
    for (int32_t i = 0; i < info->ndim; i++)
        shape[i] = info->shape[i] < 0 ? 2 : info->shape[i];
    size_t count = count_of(shape, info->ndim);
    void *data = calloc(count + 1, info->dtype.bits / 8u);
    if (data == NULL)
        return 0;
    if (info->dtype.code == DVT_FLOAT && info->dtype.bits == 32)
        for (size_t i = 0; i < count; i++)
            ((float *)data)[i] = 0.01f * (float)i;
    *input = (dvt_tensor){data, {DVT_CPU, 0}, info->ndim, info->dtype, shape, NULL, 0};
    return 1;
}

static void print_output(const char *name, const dvt_tensor *t)
{
    size_t count = count_of(t->shape, t->ndim);
    printf("%s:", name);
    for (size_t i = 0; i < count && i < 8 && t->dtype.code == DVT_FLOAT && t->dtype.bits == 32;
         i++)
        printf(" %.6f", (double)((const float *)t->data)[i]);
    printf(" (%zu values)\n", count);
}

static int run(dvt_artifact *model)
{
    static int64_t shapes[MAX_TENSORS][MAX_RANK];
    dvt_tensor inputs[MAX_TENSORS] = {{0}};
    dvt_managed *outputs[MAX_TENSORS] = {NULL};
    size_t input_count = dvt_input_count(model), output_count = dvt_output_count(model);
    dvt_error error = {0, ""};
    int filled = input_count <= MAX_TENSORS && output_count <= MAX_TENSORS;
    for (size_t i = 0; filled && i < input_count; i++)
        filled = fill_input(dvt_input_info(model, i), shapes[i], &inputs[i]);
    dvt_status status = DVT_ERROR_ARGUMENT;
    if (filled)
        status = dvt_run(model, NULL, inputs, input_count, outputs, output_count, &error);
    for (size_t i = 0; i < output_count && status == DVT_OK; i++) {
        print_output(dvt_output_info(model, i)->name, &outputs[i]->tensor);
        outputs[i]->deleter(outputs[i]);
    }
    if (status != DVT_OK)
        fprintf(stderr, "%s: %s\n", dvt_status_text(status), error.message);
    for (size_t i = 0; i < input_count && i < MAX_TENSORS; i++)
        free(inputs[i].data);
    return status == DVT_OK ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: %s model.dvt\n", arguments[0]);
        return 2;
    }
    dvt_artifact *model = NULL;
    dvt_error error = {0, ""};
    dvt_status status = dvt_open(arguments[1], NULL, &model, &error);
    if (status != DVT_OK) {
        fprintf(stderr, "%s: %s\n", dvt_status_text(status), error.message);
        return 1;
    }
    int result = run(model);
    dvt_close(model);
    return result;
}
