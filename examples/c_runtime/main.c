/* Runs an artifact from C: no Python, no PyTorch.
 *
 *     ./run model.dvt [libmyaccel.so ...]
 *
 * The libraries are plug-ins, for a model that runs on their devices; it is called twice, so
 * that weights which stay on a device can be seen to.
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

static int fail(dvt_status status, const dvt_error *error)
{
    fprintf(stderr, "%s: %s\n", dvt_status_text(status), error->message);
    return 1;
}

static int open_and_run(const char *path, dvt_plugin *const *plugins, size_t plugin_count)
{
    dvt_open_options options = {
        .struct_size = sizeof options, .plugins = plugins, .plugin_count = plugin_count};
    dvt_artifact *model = NULL;
    dvt_error error = {0, ""};
    dvt_status status = dvt_open(path, &options, &model, &error);
    if (status != DVT_OK)
        return fail(status, &error);
    int result = run(model);
    if (result == 0 && plugin_count > 0)
        result = run(model);
    dvt_close(model);
    return result;
}

int main(int count, char **arguments)
{
    dvt_plugin *plugins[MAX_TENSORS] = {NULL};
    dvt_error error = {0, ""};
    dvt_status status = DVT_OK;
    size_t loaded = 0;
    if (count < 2 || count > 2 + MAX_TENSORS) {
        fprintf(stderr, "usage: %s model.dvt [plugin.so ...]\n", arguments[0]);
        return 2;
    }
    for (int i = 2; i < count && status == DVT_OK; i++, loaded += status == DVT_OK)
        status = dvt_load_plugin(arguments[i], &plugins[loaded], &error);
    int result =
        status == DVT_OK ? open_and_run(arguments[1], plugins, loaded) : fail(status, &error);
    for (size_t i = 0; i < loaded; i++)
        if (dvt_close_plugin(plugins[i]) != 0) {
            fprintf(stderr, "memory is left on a device\n");
            result = 1;
        }
    return result;
}
