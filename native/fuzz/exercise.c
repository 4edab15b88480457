/* One input: opened with options and run on operands that chance chooses. Everything must end
 * in a result or a typed error, and results must not depend on what memory held before. */
#include "operands.h"
#include "device.h"
#include "kernel_ir.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_WORK (1 << 16) /* elements of a run: larger ones are not run, only verified */

tally *counts;
bool verbose;
#define tell(...) (verbose ? (void)fprintf(stderr, __VA_ARGS__) : (void)0)

dvt_plugin *plugins[8];
size_t plugin_count;

typedef struct {
    uint64_t digest; /* of every status and every result */
    uint64_t results;
    bool faulty; /* something failed by chance, which does not happen twice alike */
} outcome;

static void mix(outcome *o, uint64_t value)
{
    o->digest = (o->digest ^ value) * 0x9e3779b97f4a7c15u;
    o->digest ^= o->digest >> 29;
}

/* ---- a host in PyTorch's place ---- */

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
    /* Its own shape lies behind its elements, so that it can differ from what was promised. */
    size_t size = (elements * (like->dtype.bits / 8u) + 7) / 8 * 8;
    m->tensor.data = m->manager_ctx = calloc(1, size + DVT_MAX_RANK * sizeof(int64_t));
    if (m->tensor.data != NULL && like->ndim > 0) {
        m->tensor.shape = (int64_t *)(void *)((char *)m->manager_ctx + size);
        memcpy(m->tensor.shape, like->shape, (size_t)like->ndim * sizeof(int64_t));
    }
    m->deleter = free_result;
    if (m->tensor.data != NULL)
        return m;
    free(m);
    return NULL;
}

/* Zeros of the promised kind, in place or not; now and then less than was promised. */
static dvt_status host(void *context, const dvt_host_operation *o, dvt_error *error)
{
    (void)context;
    if (*o->kept == NULL)
        *o->kept = malloc(1);
    if (one_in(32))
        return dvt_fail(error, DVT_ERROR_HOST, "the host says no");
    for (uint32_t i = 0; i < o->output_count; i++) {
        const dvt_tensor *to = o->outputs[i];
        bool has_memory = i < 32 && (o->into >> i & 1u);
        if (to == NULL || (!has_memory && one_in(64)))
            continue;
        if (!has_memory || one_in(2))
            o->made[i] = zeros(to);
        if (has_memory && o->made[i] == NULL)
            tensor_clear(to);
        if (o->made[i] != NULL && one_in(32))
            o->made[i]->tensor.dtype.bits ^= 8;
        if (o->made[i] != NULL && to->ndim > 0 && to->shape[0] > 0 && one_in(32))
            o->made[i]->tensor.shape[0]--;
        if (o->made[i] != NULL && one_in(32))
            o->made[i]->tensor.ndim = 0;
    }
    return DVT_OK;
}

/* ---- runs ---- */

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

/* Values for the symbols, mostly in range, and the sizes that follow from them. */
static int64_t *choose_sizes(const program *p, int64_t *symbols)
{
    for (uint32_t i = 0; i < p->symbol_count; i++) {
        const symbol_record *s = &p->symbols[i];
        int64_t value = one_in(8)   ? s->high
                        : one_in(8) ? s->low
                        : one_in(8) ? (int64_t)odd_number()
                                    : (int64_t)below(9);
        if (!one_in(16) && value < s->low)
            value = s->low;
        if (!one_in(16) && value > s->high)
            value = s->high;
        symbols[i] = value;
    }
    int64_t *sizes = calloc(p->size_count + 1u, sizeof *sizes);
    if (sizes != NULL)
        dvt_size_run(p->code, p->code_count, symbols, sizes);
    return sizes;
}

static void describe_operand(const program *p, uint32_t n, const int64_t *symbols,
                             const int64_t *sizes, operand *o)
{
    const buffer_record *b = &p->buffers[p->inputs[n]];
    o->tensor = (dvt_tensor){NULL, {DVT_CPU, 0}, b->rank, b->dtype, o->shape, o->strides, 0};
    /* Beyond the right rank too: another rank must not show what an earlier call left there. */
    for (uint32_t d = 0; d <= DVT_MAX_RANK; d++)
        o->shape[d] = d < b->rank ? sizes[b->dims[d]] : 1;
    for (uint32_t i = 0; i < p->symbol_count; i++)
        if (p->symbols[i].input == n && p->symbols[i].axis < b->rank)
            o->shape[p->symbols[i].axis] = symbols[i];
    if (!one_in(40))
        return;
    switch (below(5)) { /* not what the program asks for */
    case 0:
        o->tensor.dtype.code = (uint8_t)below(8);
        break;
    case 1:
        o->tensor.dtype.bits = (uint8_t)(8u << below(5));
        break;
    case 2:
        o->tensor.ndim = (int32_t)below(DVT_MAX_RANK);
        break;
    case 3:
        o->shape[below(DVT_MAX_RANK)] = (int64_t)below(6) - 1;
        break;
    default:
        o->tensor.device.type = (int32_t)below(14);
    }
}

/* Whether one operand may lie where the other does. */
static bool is_alike(const dvt_tensor *a, const dvt_tensor *b)
{
    bool same = a->ndim == b->ndim && a->strides == NULL && b->strides == NULL &&
                a->byte_offset == b->byte_offset && dvt_same_dtype(a->dtype, b->dtype);
    for (int32_t d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d] && a->shape[d] > 0;
    return same;
}

/* The inputs of a call; false where they would be too large. */
static bool make_operands(const program *p, const int64_t *symbols, const int64_t *sizes,
                          operand *operands, dvt_tensor *given)
{
    for (uint32_t n = 0; n < p->input_count; n++) {
        operand *o = &operands[n];
        describe_operand(p, n, symbols, sizes, o);
        if (!operand_fill(o))
            return false;
        for (uint32_t i = 0; i < p->symbol_count; i++)
            if (p->symbols[i].input == n && p->symbols[i].axis == DVT_NONE &&
                o->block_size >= 8 && o->tensor.ndim == 0 && o->tensor.dtype.bits == 64) {
                memcpy(dvt_data(&o->tensor), &symbols[i], 8);
                o->before = tensor_digest(&o->tensor);
            }
        given[n] = o->tensor;
        if (n > 0 && one_in(24) && is_alike(&given[n], &given[n - 1]))
            given[n].data = given[n - 1].data; /* two inputs in one place */
        if (one_in(200))
            given[n].data = NULL;
    }
    return true;
}

static void check_error(dvt_status status, const dvt_error *error)
{
    if (status != DVT_OK && (status != error->status || error->message[0] == 0))
        finding("an error that does not say what it is");
}

static void check_operands(const dvt_artifact *a, operand *operands, outcome *o)
{
    for (uint32_t n = 0; n < a->program.input_count; n++) {
        operand *each = &operands[n];
        if (each->block == NULL)
            continue;
        uint64_t now = tensor_digest(&each->tensor);
        mix(o, now);
        if (now != each->before && !dvt_writes_inputs(a))
            finding("an input was written by a program that says it does not");
        if (!operand_gaps_kept(each))
            finding("something was written between the elements of an input");
    }
}

static void call(dvt_artifact *a, const dvt_tensor *given, operand *operands, outcome *o)
{
    dvt_managed *outputs[MAX_OPERANDS] = {NULL};
    static const volatile int32_t stop = 1;
    dvt_run_options options = {.struct_size = one_in(100) ? 0 : sizeof options,
                               .threads = one_in(24) ? 3 : 1,
                               .host = one_in(40) ? NULL : host,
                               .cancel = one_in(60) ? &stop : NULL};
    size_t results = dvt_output_count(a);
    dvt_error error = {0, ""};
    static int64_t shapes[MAX_OPERANDS][DVT_MAX_RANK];
    dvt_tensor places[MAX_OPERANDS] = {0};
    uint64_t seen = 0;
    if (one_in(6) && fuzz_results(a, given, places, shapes))
        options.results = places;
    if (one_in(8))
        options.state = fuzz_state(a, &seen);
    mix(o, seen);
    if (one_in(12))
        faults_fail(1 + below(8));
    if (options.threads > 1 && faults_pending()) /* of any of the threads */
        o->faulty = true;
    dvt_status status =
        dvt_run(a, one_in(40) ? NULL : &options, given, dvt_input_count(a) + one_in(200),
                outputs, results + one_in(200), one_in(100) ? NULL : &error);
    if (error.message[0] != 0)
        check_error(status, &error);
    mix(o, (uint64_t)(int64_t)status);
    tell("run: %d %s\n", status, error.message);
    counts->runs++;
    check_operands(a, operands, o);
    for (size_t i = 0; status == DVT_OK && i < results; i++) {
        const dvt_tensor *made = outputs[i] != NULL ? &outputs[i]->tensor : &places[i];
        uint64_t digest = tensor_digest(made);
        mix(o, digest);
        tell("output %zu: %016llx\n", i, (unsigned long long)digest);
        if (outputs[i] != NULL)
            outputs[i]->deleter(outputs[i]);
    }
    for (size_t i = 0; i < results; i++)
        free(places[i].data);
    dvt_state_free(options.state);
    o->results += status == DVT_OK;
}

static void run_once(dvt_artifact *a, outcome *o)
{
    static operand operands[MAX_OPERANDS];
    const program *p = &a->program;
    dvt_tensor given[MAX_OPERANDS + 1] = {0};
    int64_t symbols[MAX_OPERANDS * 2];
    dvt_error error;
    if (p->input_count > MAX_OPERANDS || p->output_count > MAX_OPERANDS ||
        p->symbol_count > MAX_OPERANDS * 2)
        return;
    int64_t *sizes = choose_sizes(p, symbols);
    frame *f = NULL;
    if (sizes != NULL && make_operands(p, symbols, sizes, operands, given) &&
        (a->inspect_only || p->symbol_count > 64 ||
         dvt_frame_new(a, symbols, &f, &error) != DVT_OK || is_small(p, f)))
        call(a, given, operands, o);
    dvt_frame_free(f);
    for (uint32_t n = 0; n < p->input_count; n++)
        operand_drop(&operands[n]);
    free(sizes);
}

/* ---- what can be asked of an open file ---- */

static void look(dvt_artifact *a, outcome *o)
{
    dvt_host_call named = {.struct_size = sizeof named};
    dvt_device_info device = {.struct_size = sizeof device};
    dvt_blob_info blob = {.struct_size = sizeof blob};
    dvt_memory memory = {.struct_size = sizeof memory};
    uint8_t digest[32];
    size_t size = 0;
    for (uint32_t kind = 0; kind <= DVT_KINDS; kind++)
        if (dvt_section(a, kind, &size) != NULL)
            mix(o, size);
    for (size_t i = 0; dvt_input_info(a, i) != NULL; i++)
        mix(o, strlen(dvt_input_info(a, i)->name));
    for (size_t i = 0; dvt_output_info(a, i) != NULL; i++)
        mix(o, strlen(dvt_output_info(a, i)->name));
    dvt_symbol_info symbol = {.struct_size = sizeof symbol};
    for (size_t i = 0; dvt_symbol_at(a, i, &symbol) == DVT_OK; i++)
        mix(o, symbol.name_length + (uint64_t)symbol.low);
    mix(o, dvt_find_input(a, "x") + dvt_find_output(a, "y"));
    for (size_t i = 0; dvt_host_call_at(a, i, &named) == DVT_OK; i++)
        mix(o, named.op_length + named.arguments_length);
    for (size_t i = 0; dvt_device_at(a, i, &device) == DVT_OK; i++)
        mix(o, strlen(device.name) + strlen(device.version));
    for (size_t i = 0; dvt_blob_at(a, i, &blob) == DVT_OK; i++)
        mix(o, blob.size);
    mix(o, dvt_host_call_count(a));
    mix(o, (uint64_t)dvt_trusted(a));
    dvt_content_digest(a, digest);
    mix(o, digest[0]);
    dvt_memory_used(a, &memory);
    mix(o, memory.peak);
    mix(o, dvt_cleared_bytes(a));
    mix(o, dvt_padding_bytes(a));
    mix(o, (uint64_t)dvt_code_refusal(a));
    mix(o, (uint64_t)dvt_signature_state(a));
    mix(o, (uint64_t)dvt_code_state(a));
}

/* ---- opening ---- */

/* Native code runs only where nothing was changed that it relies on, or where it was made from
 * kernel IR that is the seed's still. */
static bool may_run(const dvt_artifact *a, const document *d)
{
    if (a->code == NULL && a->made == NULL) /* the state tells of the kernels it lacks, too */
        return true;
    if (d == NULL || d->patched)
        return false;
    const part *ir = document_part((document *)(uintptr_t)d, DVT_KERNEL_IR);
    return !d->damaged || (a->made != NULL && a->code == NULL && ir != NULL && !ir->changed);
}

static dvt_open_options choose_options(void)
{
    dvt_open_options o = {.struct_size = sizeof o, .host_free = free};
    o.flags = (one_in(2) ? DVT_OPEN_CHECK_CONSTANTS : 0) | (one_in(2) ? DVT_OPEN_TRUST : 0) |
              (one_in(32) ? DVT_OPEN_INSPECT : 0) | (one_in(8) ? DVT_OPEN_MAY_OVERLAP : 0) |
              (one_in(16) ? DVT_OPEN_CODE_ONLY : 0);
    o.host_available = !one_in(8);
    o.plugins = plugins;
    o.plugin_count = one_in(16) ? 0 : plugin_count;
    if (one_in(2)) {
        o.keys = (const uint8_t (*)[32])public_key;
        o.key_count = 1;
    }
    if (one_in(16))
        o.max_work = 1 + below(10000);
    if (one_in(16))
        o.max_memory = 1 + below(10000);
    if (one_in(100))
        o.struct_size = (uint32_t)offsetof(dvt_open_options, plugins);
    return o;
}

/* Gives an open artifact the code of its seed, as if that had been made from the kernel IR. */
static void use_code(dvt_artifact *a, const seed *from, outcome *o)
{
    dvt_error error = {0, ""};
    if (from == NULL || from->code.size == 0 || !one_in(4))
        return;
    dvt_status status = dvt_use_code(a, from->code.data, from->code.size, &error);
    check_error(status, &error);
    mix(o, (uint64_t)(int64_t)status);
}

static dvt_status open_file(const bytes *file, const dvt_open_options *options,
                            dvt_artifact **a, dvt_error *error)
{
    char path[64];
    int descriptor = memfd_create("input", MFD_CLOEXEC);
    if (descriptor < 0 || write(descriptor, file->data, file->size) != (ssize_t)file->size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    dvt_status status = dvt_open(path, options, a, error);
    close(descriptor);
    return status;
}

static bool has_devices(const document *d)
{
    return d != NULL && document_part((document *)(uintptr_t)d, DVT_DEVICES) != NULL;
}

/* The number that the next file to be opened gets. */
static int next_descriptor(void)
{
    int next = dup(2);
    close(next);
    return next;
}

static outcome pass(const bytes *file, const document *d, const seed *from, int fill)
{
    outcome o = {0, 0, false};
    dvt_artifact *a = NULL;
    dvt_error error = {0, ""};
    void *aligned = NULL;
    dvt_open_options options = choose_options();
    bool by_path = one_in(6);
    int descriptor = next_descriptor();
    if (posix_memalign(&aligned, DVT_ALIGN, file->size + (file->size == 0)) != 0)
        abort();
    memcpy(aligned, file->data, file->size);
    faults_fill(fill);
    if (has_devices(d))
        devices_close();
    o.faulty = plugin_count > 0 && has_devices(d) && one_in(3);
    devices_fail(o.faulty, fill);
    faults_fail(one_in(6) ? 1 + below(one_in(4) ? 200 : 40) : 0);
    const dvt_open_options *given = one_in(100) ? NULL : &options;
    dvt_status status = by_path ? open_file(file, given, &a, &error)
                                : dvt_open_memory(aligned, file->size, given, &a, &error);
    check_error(status, &error);
    mix(&o, (uint64_t)(int64_t)status);
    tell("opened: %d %s\n", status, error.message);
    if (status == DVT_OK) {
        counts->opened++;
        use_code(a, from, &o);
        look(a, &o);
        for (uint32_t n = one_in(50) ? 20 : 1 + below(3); n > 0 && may_run(a, d); n--)
            run_once(a, &o);
        dvt_close(a);
    }
    counts->faults += faults_happened();
    faults_fail(0);
    if (has_devices(d))
        devices_close();
    if (next_descriptor() != descriptor)
        finding("a file was left open");
    free(aligned);
    return o;
}

void exercise(const bytes *file, const document *d, const seed *from)
{
    uint64_t start = chance_state;
    counts->inputs++;
    outcome first = pass(file, d, from, 0x5a);
    counts->results += first.results;
    counts->refusals += first.results == 0;
    if (first.results == 0 || first.faulty)
        return;
    chance_state = start;
    outcome second = pass(file, d, from, 0xa5);
    counts->compared++;
    if (first.digest != second.digest)
        finding("a result depends on what memory held before");
}
