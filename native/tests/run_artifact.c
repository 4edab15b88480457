/* Runs artifacts whose code is trusted, on inputs from files: for tests on other processors.
 *
 *     ./run_artifact folder ...
 *
 * Each folder holds model.dvt and its inputs, in0, in1, …; the outputs are written there as
 * out0, out1, …. Such a file is the rank and the shape, eight bytes a number, and the data. The
 * state of the code of each artifact is printed, or what went wrong. */
#include "dovetail.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_TENSORS 64
#define MAX_RANK    16

static FILE *open_file(const char *folder, const char *kind, size_t index, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%zu", folder, kind, index);
    return fopen(path, mode);
}

static size_t bytes_of(const dvt_tensor *t)
{
    size_t bytes = t->dtype.bits / 8u;
    for (int32_t i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

static int read_input(const char *folder, size_t index, dvt_tensor *t, int64_t *shape)
{
    FILE *file = open_file(folder, "in", index, "rb");
    int64_t rank = 0;
    int good = file != NULL && fread(&rank, 8, 1, file) == 1 && rank >= 0 && rank <= MAX_RANK;
    good = good && fread(shape, 8, (size_t)rank, file) == (size_t)rank;
    if (good) {
        t->ndim = (int32_t)rank;
        t->shape = shape;
        size_t bytes = bytes_of(t);
        t->data = malloc(bytes + 1);
        good = t->data != NULL && fread(t->data, 1, bytes, file) == bytes;
    }
    if (file != NULL)
        fclose(file);
    return good;
}

/* Element by element in row-major order, however they lie in memory. */
static int write_elements(FILE *file, const dvt_tensor *t)
{
    size_t size = t->dtype.bits / 8u, count = bytes_of(t) / size;
    for (size_t n = 0; n < count; n++) {
        const char *at = (const char *)t->data + t->byte_offset;
        size_t left = n;
        int64_t dense = 1;
        for (int32_t i = t->ndim - 1; i >= 0; i--) {
            int64_t stride = t->strides != NULL ? t->strides[i] : dense;
            at += (int64_t)(left % (size_t)t->shape[i]) * stride * (int64_t)size;
            left /= (size_t)t->shape[i];
            dense *= t->shape[i];
        }
        if (fwrite(at, size, 1, file) != 1)
            return 0;
    }
    return 1;
}

static int write_output(const char *folder, size_t index, const dvt_tensor *t)
{
    FILE *file = open_file(folder, "out", index, "wb");
    if (file == NULL)
        return 0;
    int64_t rank = t->ndim;
    int good = fwrite(&rank, 8, 1, file) == 1;
    good = good && fwrite(t->shape, 8, (size_t)rank, file) == (size_t)rank;
    good = good && write_elements(file, t);
    return fclose(file) == 0 && good;
}

static dvt_status run(dvt_artifact *model, const char *folder, dvt_error *error)
{
    static int64_t shapes[MAX_TENSORS][MAX_RANK];
    dvt_tensor inputs[MAX_TENSORS] = {{0}};
    dvt_managed *outputs[MAX_TENSORS] = {NULL};
    size_t input_count = dvt_input_count(model), output_count = dvt_output_count(model);
    dvt_status status =
        input_count <= MAX_TENSORS && output_count <= MAX_TENSORS ? DVT_OK : DVT_ERROR_ARGUMENT;
    for (size_t i = 0; i < input_count && status == DVT_OK; i++) {
        inputs[i].device.type = DVT_CPU;
        inputs[i].dtype = dvt_input_info(model, i)->dtype;
        if (!read_input(folder, i, &inputs[i], shapes[i]))
            status = DVT_ERROR_IO;
    }
    if (status == DVT_OK)
        status = dvt_run(model, NULL, inputs, input_count, outputs, output_count, error);
    for (size_t i = 0; i < output_count && status == DVT_OK; i++) {
        if (!write_output(folder, i, &outputs[i]->tensor))
            status = DVT_ERROR_IO;
        outputs[i]->deleter(outputs[i]);
    }
    for (size_t i = 0; i < input_count && i < MAX_TENSORS; i++)
        free(inputs[i].data);
    return status;
}

static int open_and_run(const char *folder)
{
    dvt_open_options options = {.struct_size = sizeof options, .flags = DVT_OPEN_TRUST};
    dvt_artifact *model = NULL;
    dvt_error error = {0, ""};
    char path[4096];
    snprintf(path, sizeof path, "%s/model.dvt", folder);
    dvt_status status = dvt_open(path, &options, &model, &error);
    int state = status == DVT_OK ? dvt_code_state(model) : 0;
    if (status == DVT_OK)
        status = run(model, folder, &error);
    if (status == DVT_OK)
        printf("%d\n", state);
    else
        printf("%s: %s\n", dvt_status_text(status), error.message);
    dvt_close(model);
    return status == DVT_OK ? 0 : 1;
}

int main(int count, char **arguments)
{
    int failed = 0;
    for (int i = 1; i < count; i++)
        failed |= open_and_run(arguments[i]);
    return failed;
}
