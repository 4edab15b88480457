/* Fuzzing the loader and the executor: every input ends in a result or a typed error.
 *
 * With libFuzzer (clang -fsanitize=fuzzer -DDVT_LIBFUZZER) the fuzzer drives it. By itself it
 * takes a number of mutations, a seed and some artifacts, and works through: every truncation
 * of header and table, every byte of them flipped, then random mutations of whole files. Half
 * of the mutations have their digests put right again, so that what lies behind them is
 * reached. */
#include "internal.h"
#include "kernel_ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER   128
#define ENTRY    64
#define MAX_WORK (1 << 16) /* elements of a buffer: larger ones are not run, only verified */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long opened, ran;

static void free_result(dvt_managed *self)
{
    free(self->manager_ctx);
    free(self);
}

static dvt_managed *zeros(const dvt_tensor *like)
{
    size_t elements = 1;
    for (int32_t d = 0; d < like->ndim; d++)
        if (like->shape[d] > 1)
            elements += (size_t)((like->shape[d] - 1) * like->strides[d]);
    dvt_managed *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->tensor = *like;
    m->tensor.byte_offset = 0;
    m->tensor.data = m->manager_ctx = calloc(elements, like->dtype.bits / 8u);
    m->deleter = free_result;
    return m;
}

/* Stands in for PyTorch: every result is zeros of the promised kind. Of results that have
 * memory already, those of every other call are left for the runtime to copy there. */
static dvt_status host(void *context, const dvt_host_operation *o, dvt_error *error)
{
    (void)context;
    if (*o->kept == NULL)
        *o->kept = malloc(1);
    if (o->call % 7 == 6)
        return dvt_fail(error, DVT_ERROR_HOST, "the host says no");
    for (uint32_t i = 0; i < o->output_count; i++) {
        const dvt_tensor *to = o->outputs[i];
        bool in_place = i < 32 && (o->into >> i & 1u) && o->call % 2 == 1;
        if (to != NULL && !in_place)
            o->made[i] = zeros(to);
        else if (to != NULL && dvt_numel(to) > 0)
            memset(dvt_data(to), 0, to->dtype.bits / 8u);
    }
    return DVT_OK;
}

static bool is_small(const program *p, const frame *f)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        total += (uint64_t)dvt_numel(&f->tensors[i]) + f->extents[i];
        if (total > MAX_WORK)
            return false;
    }
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const dvt_kernel *kernel = p->instructions[i].kernel;
        if (kernel != NULL && kernel->run == dvt_kernel_ir_run &&
            dvt_kernel_ir_work(&f->calls[i]) > MAX_WORK)
            return false;
    }
    return true;
}

static void run(dvt_artifact *a, int64_t dynamic)
{
    static uint64_t zeros[MAX_WORK / 4];
    size_t count = dvt_input_count(a), results = dvt_output_count(a);
    dvt_tensor *inputs = calloc(count + 1, sizeof *inputs);
    dvt_managed **outputs = calloc(results + 1, sizeof *outputs);
    int64_t (*shapes)[DVT_MAX_RANK] = calloc(count + 1, sizeof *shapes);
    int64_t symbols[64] = {0};
    dvt_error error;
    bool fits = a->program.symbol_count <= 64;
    for (size_t i = 0; i < count; i++) {
        const dvt_tensor_info *info = dvt_input_info(a, i);
        int64_t elements = 1;
        for (int32_t d = 0; d < info->ndim; d++) {
            shapes[i][d] = info->shape[d] < 0 ? dynamic : info->shape[d];
            fits = fits && shapes[i][d] < MAX_WORK && elements < MAX_WORK;
            elements *= fits ? shapes[i][d] : 1;
        }
        fits = fits && elements * 16 <= (int64_t)sizeof zeros;
        inputs[i] =
            (dvt_tensor){zeros, {DVT_CPU, 0}, info->ndim, info->dtype, shapes[i], NULL, 0};
    }
    for (uint32_t i = 0; fits && i < a->program.symbol_count; i++)
        symbols[i] = shapes[a->program.symbols[i].input][a->program.symbols[i].axis];
    frame *f = NULL;
    if (fits && dvt_frame_new(a, symbols, &f, &error) == DVT_OK && is_small(&a->program, f)) {
        dvt_run_options options = {sizeof options, 0, host, NULL};
        dvt_status status = dvt_run(a, &options, inputs, count, outputs, results, &error);
        ran += status == DVT_OK;
        if (status == DVT_OK)
            for (size_t i = 0; i < results; i++)
                outputs[i]->deleter(outputs[i]);
        memset(zeros, 0, sizeof zeros); /* a program may write to its inputs */
    }
    dvt_frame_free(f);
    free(inputs);
    free(outputs);
    free(shapes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *aligned = aligned_alloc(64, (size + 64) / 64 * 64);
    if (aligned == NULL)
        return 0;
    memcpy(aligned, data, size);
    dvt_open_options options = {
        .struct_size = sizeof options, .host_available = 1, .host_free = free};
    options.flags = DVT_OPEN_CHECK_CONSTANTS;
    dvt_artifact *a = NULL;
    dvt_error error = {0, ""};
    dvt_status status = dvt_open_memory(aligned, size, &options, &a, &error);
    if (status == DVT_OK) {
        opened++;
        run(a, 2);
        run(a, 0);
        dvt_close(a);
    } else if (status != error.status || error.message[0] == 0) {
        abort(); /* an error must say what it is */
    }
    free(aligned);
    return 0;
}

#ifndef DVT_LIBFUZZER

static uint64_t state;

static uint32_t random_below(uint32_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % (limit ? limit : 1);
}

/* Puts the digests of sections, table and header right, where the table still makes sense. */
static void reseal(uint8_t *data, size_t size)
{
    uint32_t count;
    memcpy(&count, data + 24, 4);
    if (size < HEADER || count > 64 || size < HEADER + count * (size_t)ENTRY)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *entry = data + HEADER + i * (size_t)ENTRY;
        uint64_t offset, length;
        memcpy(&offset, entry + 8, 8);
        memcpy(&length, entry + 16, 8);
        if (offset <= size && length <= size - offset)
            dvt_sha256(data + offset, (size_t)length, entry + 24);
    }
    memset(data + 80, 0, 32);
    uint8_t root[32];
    dvt_sha256(data, HEADER + count * (size_t)ENTRY, root);
    memcpy(data + 80, root, 32);
}

/* Somewhere in the file, or (so that small sections get their share) in one of its sections. */
static size_t somewhere(const uint8_t *data, size_t size)
{
    uint32_t count;
    memcpy(&count, data + 24, 4);
    if (random_below(3) == 0 || count == 0 || size < HEADER + count * (uint64_t)ENTRY)
        return random_below((uint32_t)size);
    uint64_t place[2];
    memcpy(place, data + HEADER + random_below(count) * (size_t)ENTRY + 8, sizeof place);
    if (place[0] >= size || place[1] == 0 || place[1] > size - place[0])
        return random_below((uint32_t)size);
    return (size_t)place[0] + random_below((uint32_t)place[1]);
}

static void mutate(uint8_t *data, size_t size)
{
    static const uint8_t odd[] = {0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 64};
    uint32_t changes = 1 + random_below(6);
    for (uint32_t i = 0; i < changes; i++) {
        size_t at = somewhere(data, size);
        switch (random_below(4)) {
        case 0:
            data[at] ^= (uint8_t)(1u << random_below(8));
            break;
        case 1:
            data[at] = odd[random_below(sizeof odd)];
            break;
        case 2:
            for (size_t n = at / 4 * 4; n < at / 4 * 4 + 4 && n < size; n++)
                data[n] = random_below(2) ? 0xff : 0;
            break;
        default: {
            size_t from = somewhere(data, size), length = 1 + random_below(16);
            if (from + length <= size && at + length <= size)
                memmove(data + at, data + from, length);
        }
        }
    }
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(1 << 22);
    *size = file != NULL && data != NULL ? fread(data, 1, 1 << 22, file) : 0;
    if (file != NULL)
        fclose(file);
    if (*size < HEADER) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    return data;
}

static void try_bytes(const uint8_t *data, size_t size)
{
    alarm(20); /* a hang ends the process */
    LLVMFuzzerTestOneInput(data, size);
}

static long header_and_table(const uint8_t *data, size_t size, uint8_t *copy)
{
    uint32_t count;
    memcpy(&count, data + 24, 4);
    size_t head = HEADER + count * (size_t)ENTRY;
    long tried = 0;
    for (size_t at = 0; at < head; at++, tried += 10) {
        try_bytes(data, at);
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, data, size);
            copy[at] ^= (uint8_t)(1u << bit);
            try_bytes(copy, size);
        }
        copy[at] = (uint8_t)~data[at];
        reseal(copy, size);
        try_bytes(copy, size);
    }
    return tried;
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: %s MUTATIONS SEED FILE...\n", arguments[0]);
        return 2;
    }
    long mutations = atol(arguments[1]), tried = 0;
    state = (uint64_t)atol(arguments[2]) * 2 + 1;
    uint8_t *copy = malloc(1 << 22);
    if (copy == NULL)
        return 2;
    for (int i = 3; i < count; i++) {
        size_t size;
        uint8_t *data = read_file(arguments[i], &size);
        try_bytes(data, size);
        tried += header_and_table(data, size, copy);
        for (long n = 0; n < mutations / (count - 3); n++, tried++) {
            memcpy(copy, data, size);
            mutate(copy, size);
            if (n % 2)
                reseal(copy, size);
            try_bytes(copy, n % 16 == 15 ? random_below((uint32_t)size + 1) : size);
        }
        free(data);
    }
    free(copy);
    printf("%ld inputs (%ld opened, %ld runs gave results): results or typed errors, nothing "
           "else\n",
           tried, opened, ran);
    return 0;
}

#endif
