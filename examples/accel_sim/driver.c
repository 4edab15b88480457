/* The table: devices and their attributes. A device is a process, started when it is opened.
 *
 * ACCEL_SIM_MEMORY=n gives a device n bytes (256 MiB unless told), ACCEL_SIM_DEVICE names the
 * program that is the device. The attributes "bytes.in", "bytes.out", "bytes.between",
 * "launched", "prepared", "messages" and "overlap" count what the device itself saw; setting
 * "reset" sets them to 0, "memory.limit" gives it less memory, "kill" ends its process, "slow"
 * has every kernel take 200 ms, and "fault.NAME" breaks what faults.c lists.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES = 2, STARTUP_MS = 20000 };
#define MEMORY ((uint64_t)256 << 20)

extern char **environ;
const dvp_host *sim_host;

dvp_status sim_fail(dvp_error *error, dvp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

static uint64_t memory_bytes(void)
{
    const char *text = getenv("ACCEL_SIM_MEMORY");
    return text == NULL ? MEMORY : strtoull(text, NULL, 10);
}

static dvp_status get_info(dvp_info *info, dvp_error *error)
{
    (void)error;
    info->abi = DVP_ABI;
    info->name = "accel_sim";
    info->version = "1.0";
    info->device = "a simulated accelerator: another process";
    if (info->struct_size >= offsetof(dvp_info, device_count) + sizeof info->device_count) {
        info->flags = DVP_PARALLEL_STREAMS | DVP_QUANTIZED_OPERATIONS | DVP_ADDRESS_HANDLES;
        info->device_count = DEVICES;
    }
    return DVP_OK;
}

static dvp_status device_describe(int32_t index, dvp_device_info *info, dvp_error *error)
{
    static const char *const names[DEVICES] = {"simulator 0", "simulator 1"};
    if (index < 0 || index >= DEVICES)
        return sim_fail(error, DVP_INVALID, "there is no device %d", index);
    info->alignment = SIM_ALIGN;
    info->name = names[index];
    info->memory_bytes = memory_bytes();
    if (info->struct_size >=
        offsetof(dvp_device_info, memory_kinds) + sizeof info->memory_kinds)
        info->memory_kinds =
            DVP_MEMORY_DEVICE | DVP_MEMORY_PINNED | DVP_MEMORY_UNIFIED | DVP_MEMORY_IMPORTED;
    return DVP_OK;
}

/* ---- the process ---- */

/* The program beside this library. */
static bool find_program(char *path, size_t size)
{
    const char *given = getenv("ACCEL_SIM_DEVICE");
    Dl_info library;
    if (given != NULL)
        return snprintf(path, size, "%s", given) < (int)size;
    if (dladdr((const void *)&sim_host, &library) == 0 || library.dli_fname == NULL)
        return false;
    const char *end = strrchr(library.dli_fname, '/');
    int length = end == NULL ? 0 : (int)(end - library.dli_fname + 1);
    return snprintf(path, size, "%.*saccel_sim_device", length, library.dli_fname) < (int)size;
}

static dvp_status spawn(dvp_device *device, int memory, dvp_error *error)
{
    char path[4096];
    if (!find_program(path, sizeof path))
        return sim_fail(error, DVP_FAILED, "the device's program cannot be found");
    char *const arguments[] = {path, NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, memory, 3);
    int failed = posix_spawn(&device->process, path, &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed)
        return sim_fail(error, DVP_FAILED, "%s does not start: %s", path, strerror(failed));
    for (int i = 0; i < STARTUP_MS / 10; i++) {
        if (atomic_load(&device->shared->ready))
            return DVP_OK;
        sim_sleep(&device->shared->ready, 0, 10000000);
        if (waitpid(device->process, &device->status, WNOHANG) != 0)
            break;
    }
    kill(device->process, SIGKILL);
    waitpid(device->process, &device->status, 0);
    return sim_fail(error, DVP_FAILED, "%s did not become ready", path);
}

static dvp_status start(dvp_device *device, dvp_error *error)
{
    int memory = memfd_create("accel_sim", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, SIM_HEAD + SIM_HEAP) != 0) {
        if (memory >= 0)
            close(memory);
        return sim_fail(error, DVP_FAILED, "no shared memory: %s", strerror(errno));
    }
    void *mapped =
        mmap(NULL, SIM_HEAD + SIM_HEAP, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    dvp_status status = DVP_OK;
    if (mapped == MAP_FAILED) {
        status = sim_fail(error, DVP_FAILED, "no shared memory: %s", strerror(errno));
    } else {
        device->shared = mapped;
        device->shared->memory = memory_bytes();
        device->shared->heap_at = (device->shared->memory + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
        device->shared->probe = (uintptr_t)&device->shared->probe;
        status = spawn(device, memory, error);
        if (status != DVP_OK)
            munmap(mapped, SIM_HEAD + SIM_HEAP);
    }
    close(memory);
    return status;
}

/* ---- what is open, for the vendor's own library ---- */

static dvp_device *all_open[DEVICES]; /* the last that was opened of each number */
static pthread_mutex_t all_open_lock = PTHREAD_MUTEX_INITIALIZER;

static void set_open(int32_t index, const dvp_device *was, dvp_device *is)
{
    pthread_mutex_lock(&all_open_lock);
    if (was == NULL || all_open[index] == was)
        all_open[index] = is;
    pthread_mutex_unlock(&all_open_lock);
}

dvp_device *sim_open_device(int32_t index)
{
    pthread_mutex_lock(&all_open_lock);
    dvp_device *found = index >= 0 && index < DEVICES ? all_open[index] : NULL;
    pthread_mutex_unlock(&all_open_lock);
    return found;
}

static dvp_status device_open(int32_t index, dvp_device **opened, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_device_open, error);
    if (status != DVP_OK)
        return status;
    if (index < 0 || index >= DEVICES)
        return sim_fail(error, DVP_INVALID, "there is no device %d", index);
    dvp_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return sim_fail(error, DVP_NO_MEMORY, "no memory for a device");
    device->index = index;
    status = start(device, error);
    if (status != DVP_OK) {
        free(device);
        return status;
    }
    device->limit = (int64_t)device->shared->memory;
    pthread_mutex_init(&device->lock, NULL);
    char said[80];
    snprintf(said, sizeof said, "device %d is process %d", index, (int)device->process);
    sim_host->log(sim_host->context, 10, said);
    *opened = device;
    set_open(index, NULL, device);
    return DVP_OK;
}

static void device_close(dvp_device *device)
{
    set_open(device->index, device, NULL);
    if (!device->gone) {
        kill(device->process,
             SIGKILL); /* it may be hung; there is nothing that it could save */
        waitpid(device->process, &device->status, 0);
    }
    for (uint32_t i = 0; i < SIM_STREAMS; i++)
        sim_drop_pending(device, i);
    sim_free_graphs(device);
    while (device->streams != NULL) { /* the vendor's own */
        dvp_stream *next = device->streams->next;
        free(device->streams);
        device->streams = next;
    }
    munmap(device->shared, SIM_HEAD + SIM_HEAP);
    pthread_mutex_destroy(&device->lock);
    free(device->blocks);
    free(device);
}

dvp_status sim_alive(dvp_device *device, dvp_error *error)
{
    pthread_mutex_lock(&device->lock);
    if (!device->gone && waitpid(device->process, &device->status, WNOHANG) != 0)
        device->gone = true;
    bool gone = device->gone;
    pthread_mutex_unlock(&device->lock);
    if (!gone)
        return DVP_OK;
    if (WIFSIGNALED(device->status))
        return sim_fail(error, DVP_DEVICE_LOST, "the device's process was ended by signal %d",
                        WTERMSIG(device->status));
    return sim_fail(error, DVP_DEVICE_LOST, "the device's process has ended");
}

/* ---- attributes ---- */

static dvp_status device_get(dvp_device *device, const char *name, int64_t *value,
                             dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_device_get, error);
    if (status != DVP_OK)
        return status;
    sim_shared *s = device->shared;
    const struct {
        const char *name;
        int64_t value;
    } known[] = {
        {"memory.used", device->used + device->heap_used},
        {"memory.limit", device->limit},
        {"bytes.in", (int64_t)atomic_load(&s->bytes_in)},
        {"bytes.out", (int64_t)atomic_load(&s->bytes_out)},
        {"bytes.between", (int64_t)atomic_load(&s->bytes_between)},
        {"launched", (int64_t)atomic_load(&s->launched)},
        {"prepared", (int64_t)atomic_load(&s->prepared)},
        {"messages", (int64_t)atomic_load(&s->messages)},
        {"overlap", (int64_t)atomic_load(&s->most_busy)},
        {"process", (int64_t)device->process},
        {"index", device->index},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            *value = known[i].value;
            return DVP_OK;
        }
    return sim_fail(error, DVP_UNSUPPORTED, "there is no attribute '%s'", name);
}

static void reset_counters(sim_shared *s)
{
    atomic_store(&s->bytes_in, 0);
    atomic_store(&s->bytes_out, 0);
    atomic_store(&s->bytes_between, 0);
    atomic_store(&s->launched, 0);
    atomic_store(&s->prepared, 0);
    atomic_store(&s->messages, 0);
    atomic_store(&s->most_busy, 0);
}

static dvp_status device_set(dvp_device *device, const char *name, int64_t value,
                             dvp_error *error)
{
    if (strcmp(name, "reset") == 0)
        reset_counters(device->shared);
    else if (strcmp(name, "memory.limit") == 0)
        device->limit =
            value < (int64_t)device->shared->memory ? value : (int64_t)device->shared->memory;
    else if (strcmp(name, "handles.numbered") == 0)
        device->numbered = value != 0;
    else if (strcmp(name, "kill") == 0)
        kill(device->process, SIGKILL);
    else if (!sim_set_fault(name, value))
        return sim_fail(error, DVP_UNSUPPORTED, "there is no attribute '%s' to set", name);
    return DVP_OK;
}

static const dvp_plugin TABLE = {
    .struct_size = sizeof(dvp_plugin),
    .abi = DVP_ABI,
    .get_info = get_info,
    .device_open = device_open,
    .device_close = device_close,
    .device_get = device_get,
    .device_set = device_set,
    .buffer_alloc = sim_buffer_alloc,
    .buffer_free = sim_buffer_free,
    .buffer_copy = sim_buffer_copy,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_sync = sim_stream_sync,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .event_wait = sim_event_wait,
    .query_op = sim_query_op,
    .find_kernel = sim_find_kernel,
    .execute = sim_execute,
    .device_describe = device_describe,
    .stream_wait = sim_stream_wait,
    .buffer_copy_peer = sim_buffer_copy_peer,
    .constant_prepare = sim_constant_prepare,
    .event_sync = sim_event_sync,
    .memory_alloc = sim_memory_alloc,
    .memory_import = sim_memory_import,
    .constant_pack = sim_constant_pack,
    .packed_free = sim_packed_free,
    .constant_accept = sim_constant_accept,
    .stream_import = sim_stream_import,
    .stream_native = sim_stream_native,
    .capture_begin = sim_capture_begin,
    .capture_end = sim_capture_end,
    .graph_launch = sim_graph_launch,
    .graph_free = sim_graph_free,
};

dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                 const dvp_plugin **plugin)
{
    if (host_abi >> 16 != DVP_ABI_MAJOR)
        return DVP_VERSION;
    sim_host = host;
    *plugin = &TABLE;
    return DVP_OK;
}
