/* The device and its memory, with faults on demand and a log.
 *
 * ACCEL_LOG=path appends a line for everything the device does. ACCEL_FAIL_AT=n makes the n-th
 * kernel fail, ACCEL_LOSE_AT=n loses the device at it, ACCEL_MEMORY=n gives it n bytes,
 * ACCEL_ASYNC=1 has it do nothing before somebody waits; the attributes "fail.at", "lose.at",
 * "leak" and "memory.limit" do the same at run time.
 */
#include "accel.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define HANDLE_TAG 0xACCE000000000000u /* no address of a user's process looks like this */

dvp_status accel_fail(dvp_error *error, dvp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

__attribute__((format(printf, 2, 3))) static void note(const dvp_device *device,
                                                       const char *format, ...)
{
    if (device->log == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(device->log, format, arguments);
    va_end(arguments);
    fflush(device->log);
}

dvp_status accel_alive(const dvp_device *device, dvp_error *error)
{
    return device->lost ? accel_fail(error, DVP_DEVICE_LOST, "the device does not answer")
                        : DVP_OK;
}

static int64_t number_from(const char *variable)
{
    const char *text = getenv(variable);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

static dvp_status get_info(dvp_info *info, dvp_error *error)
{
    (void)error;
    info->abi = DVP_ABI;
    info->name = "accel_c";
    info->version = "1.0";
    info->device = "a simulated accelerator with memory of its own";
    return DVP_OK;
}

static dvp_status device_open(int32_t index, dvp_device **device, dvp_error *error)
{
    if (index != 0)
        return accel_fail(error, DVP_INVALID, "there is no device %d", index);
    *device = calloc(1, sizeof **device);
    if (*device == NULL)
        return accel_fail(error, DVP_NO_MEMORY, "no memory for a device");
    const char *path = getenv("ACCEL_LOG");
    (*device)->log = path == NULL ? NULL : fopen(path, "a");
    (*device)->fail_at = number_from("ACCEL_FAIL_AT");
    (*device)->lose_at = number_from("ACCEL_LOSE_AT");
    (*device)->limit = number_from("ACCEL_MEMORY");
    (*device)->waits = number_from("ACCEL_ASYNC") != 0;
    return DVP_OK;
}

static void device_close(dvp_device *device)
{
    note(device, "close with %lld bytes in use\n", (long long)device->used);
    for (size_t i = 0; i < device->block_count; i++)
        free(device->blocks[i].bytes);
    if (device->log != NULL)
        fclose(device->log);
    free(device->blocks);
    free(device);
}

static dvp_status device_get(dvp_device *device, const char *name, int64_t *value,
                             dvp_error *error)
{
    const struct {
        const char *name;
        int64_t value;
    } known[] = {
        {"memory.used", device->used},      {"memory.limit", device->limit},
        {"executed", device->executed},     {"copies.in", device->copies_in},
        {"copies.out", device->copies_out},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            *value = known[i].value;
            return DVP_OK;
        }
    return accel_fail(error, DVP_UNSUPPORTED, "there is no attribute '%s'", name);
}

static dvp_status device_set(dvp_device *device, const char *name, int64_t value,
                             dvp_error *error)
{
    int64_t at = value == 0 ? 0 : device->executed + value; /* counted from now on */
    if (strcmp(name, "fail.at") == 0)
        device->fail_at = at;
    else if (strcmp(name, "lose.at") == 0)
        device->lose_at = at;
    else if (strcmp(name, "leak") == 0)
        device->leaks = value != 0;
    else if (strcmp(name, "memory.limit") == 0)
        device->limit = value;
    else
        return accel_fail(error, DVP_UNSUPPORTED, "there is no attribute '%s' to set", name);
    return DVP_OK;
}

/* ---- memory ---- */

static void *handle_of(size_t index)
{
    return (void *)(uintptr_t)(HANDLE_TAG | (index + 1));
}

static accel_block *block_of(const dvp_device *device, const void *memory)
{
    uintptr_t number = (uintptr_t)memory;
    if ((number & 0xFFFF000000000000u) != HANDLE_TAG)
        return NULL;
    size_t index = (size_t)(number & 0xFFFFFFFFFFFFu) - 1;
    bool there = index < device->block_count && device->blocks[index].bytes != NULL;
    return there ? &device->blocks[index] : NULL;
}

unsigned char *accel_memory(dvp_device *device, const void *memory, uint64_t offset,
                            uint64_t bytes, dvp_error *error)
{
    const accel_block *block = block_of(device, memory);
    if (block == NULL) {
        accel_fail(error, DVP_INVALID, "%p is not memory of this device", memory);
        return NULL;
    }
    if (offset > block->size || bytes > block->size - offset) {
        accel_fail(error, DVP_INVALID, "bytes %llu to %llu of a buffer of %llu",
                   (unsigned long long)offset, (unsigned long long)(offset + bytes),
                   (unsigned long long)block->size);
        return NULL;
    }
    return block->bytes + offset;
}

static size_t free_place(dvp_device *device)
{
    size_t index = 0;
    while (index < device->block_count && device->blocks[index].bytes != NULL)
        index++;
    if (index < device->block_count)
        return index;
    accel_block *grown = realloc(device->blocks, (index + 1) * sizeof *grown);
    if (grown == NULL)
        return SIZE_MAX;
    grown[index] = (accel_block){NULL, 0};
    device->blocks = grown;
    device->block_count = index + 1;
    return index;
}

static dvp_status buffer_alloc(dvp_device *device, uint64_t bytes, void **memory,
                               dvp_error *error)
{
    dvp_status status = accel_alive(device, error);
    if (status != DVP_OK)
        return status;
    bool full = device->limit > 0 && (uint64_t)device->used + bytes > (uint64_t)device->limit;
    size_t index = bytes > (uint64_t)1 << 40 || full ? SIZE_MAX : free_place(device);
    unsigned char *block = index == SIZE_MAX ? NULL : malloc(bytes);
    if (block == NULL)
        return accel_fail(error, DVP_NO_MEMORY, "no room for %llu bytes",
                          (unsigned long long)bytes);
    device->blocks[index] = (accel_block){block, bytes};
    device->used += (int64_t)bytes;
    *memory = handle_of(index);
    note(device, "alloc %llu\n", (unsigned long long)bytes);
    return DVP_OK;
}

static void buffer_free(dvp_device *device, void *memory)
{
    accel_block *block = block_of(device, memory);
    if (block == NULL || device->leaks)
        return;
    note(device, "free %llu\n", (unsigned long long)block->size);
    free(block->bytes);
    device->used -= (int64_t)block->size;
    *block = (accel_block){NULL, 0};
}

dvp_status accel_copy(dvp_device *device, const dvp_copy *copy, dvp_error *error)
{
    static const char *const words[] = {"?", "h2d", "d2h", "d2d"};
    dvp_status status = accel_alive(device, error);
    if (status != DVP_OK)
        return status;
    bool from_device = copy->direction != DVP_HOST_TO_DEVICE;
    bool to_device = copy->direction != DVP_DEVICE_TO_HOST;
    const unsigned char *from = copy->source;
    unsigned char *to = copy->destination;
    if (from_device)
        from = accel_memory(device, copy->source, copy->source_offset, copy->bytes, error);
    if (to_device && from != NULL)
        to = accel_memory(device, copy->destination, copy->destination_offset, copy->bytes,
                          error);
    if (from == NULL || to == NULL || copy->direction < 1 || copy->direction > 3)
        return DVP_INVALID;
    memmove(to, from, copy->bytes);
    device->copies_in += copy->direction == DVP_HOST_TO_DEVICE;
    device->copies_out += copy->direction == DVP_DEVICE_TO_HOST;
    note(device, "%s %llu\n", words[copy->direction], (unsigned long long)copy->bytes);
    return DVP_OK;
}

static dvp_status buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                              dvp_error *error)
{
    dvp_status status = accel_alive(device, error);
    return status == DVP_OK ? accel_submit_copy(stream, copy, error) : status;
}

/* ---- operations ---- */

static dvp_status query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                           dvp_error *error)
{
    (void)device;
    (void)error;
    accel_answer(op, answer);
    return DVP_OK;
}

static dvp_status find_kernel(dvp_device *device, const char *name, uint32_t min_version,
                              uint32_t max_version, const dvp_kernel **kernel,
                              uint32_t *version, dvp_error *error)
{
    (void)device;
    *kernel = NULL;
    for (const dvp_kernel *k = ACCEL_KERNELS; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0 && k->version >= min_version &&
            (max_version == 0 || k->version <= max_version) &&
            (*kernel == NULL || k->version > *version)) {
            *kernel = k;
            *version = k->version;
        }
    if (*kernel == NULL)
        return accel_fail(error, DVP_UNSUPPORTED, "there is no kernel '%s' of version %u to %u",
                          name, min_version, max_version);
    return DVP_OK;
}

dvp_status accel_run(dvp_device *device, const dvp_kernel *kernel, const dvp_op *op,
                     dvp_error *error)
{
    dvp_status status = accel_alive(device, error);
    if (status != DVP_OK)
        return status;
    device->executed++;
    if (device->executed == device->lose_at) {
        device->lost = true;
        return accel_fail(error, DVP_DEVICE_LOST, "the device was lost at %s", kernel->name);
    }
    if (device->executed == device->fail_at)
        return accel_fail(error, DVP_FAILED, "a fault was injected at %s", kernel->name);
    status = kernel->run(device, op, error);
    if (status == DVP_OK)
        note(device, "kernel %s@%u %s\n", kernel->name, kernel->version, op->name);
    return status;
}

static dvp_status execute(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                          const dvp_op *op, dvp_error *error)
{
    dvp_status status = accel_alive(device, error);
    return status == DVP_OK ? accel_submit_kernel(stream, kernel, op, error) : status;
}

static const dvp_plugin TABLE = {
    .struct_size = sizeof(dvp_plugin),
    .abi = DVP_ABI,
    .get_info = get_info,
    .device_open = device_open,
    .device_close = device_close,
    .device_get = device_get,
    .device_set = device_set,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_copy = buffer_copy,
    .stream_create = accel_stream_create,
    .stream_destroy = accel_stream_destroy,
    .stream_sync = accel_stream_sync,
    .event_create = accel_event_create,
    .event_destroy = accel_event_destroy,
    .event_record = accel_event_record,
    .event_wait = accel_event_wait,
    .query_op = query_op,
    .find_kernel = find_kernel,
    .execute = execute,
};

dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                 const dvp_plugin **plugin)
{
    (void)host;
    if (host_abi >> 16 != DVP_ABI_MAJOR)
        return DVP_VERSION;
    *plugin = &TABLE;
    return DVP_OK;
}
