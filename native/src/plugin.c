/* Loading plug-ins and opening their devices. */
#include "plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A structure that a plug-in fills in, with room behind it that must stay as it is. */
enum { GUARD = 256, PATTERN = 0xA5 };
typedef struct {
    union {
        dvp_info info;
        dvp_answer answer;
        unsigned char bytes[128];
    } value;
    unsigned char guard[GUARD];
} guarded;

static int problem(plugin_error *error, plugin_problem kind, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    error->problem = kind;
    return -1;
}

static void guard(guarded *g, uint32_t size)
{
    memset(g, 0, sizeof g->value);
    memset(g->value.bytes + size, PATTERN, sizeof *g - size);
    memcpy(g->value.bytes, &size, sizeof size);
}

/* Whether a plug-in kept within the structure's size, before and behind its end. */
static bool is_intact(const guarded *g, uint32_t size)
{
    uint32_t claimed;
    memcpy(&claimed, g->value.bytes, sizeof claimed);
    for (const unsigned char *b = g->value.bytes + size; b < g->guard + GUARD; b++)
        if (*b != PATTERN)
            return false;
    return claimed >= sizeof claimed && claimed <= size;
}

static void clear(dvp_error *said)
{
    said->struct_size = sizeof *said;
    said->message[0] = 0;
}

int plugin_fail(plugin *p, dvp_status status, const char *what, const dvp_error *said,
                plugin_error *error)
{
    char words[sizeof said->message];
    memcpy(words, said->message, sizeof words);
    words[sizeof words - 1] = 0;
    plugin_problem kind = PLUGIN_FAILED;
    if (status == DVP_DEVICE_LOST) {
        plugin_close(p, NULL);
        kind = PLUGIN_LOST;
    } else if (status == DVP_NO_MEMORY) {
        kind = PLUGIN_MEMORY;
    }
    return problem(error, kind, "the plug-in '%s' failed in %s: %s%s", p->info.name, what,
                   words[0] ? words : "it gave no reason",
                   kind == PLUGIN_LOST ? " (the device is lost; the next call opens it again)"
                                       : "");
}

static void host_log(void *context, int32_t level, const char *message)
{
    (void)context;
    if (level >= 40 && message != NULL)
        fprintf(stderr, "dovetail plug-in: %s\n", message);
}

static const dvp_host HOST = {sizeof(dvp_host), DVP_ABI, NULL, host_log};

/* ---- loading ---- */

static int find_query(const char *path, void **opened, dvp_query *query, plugin_error *error)
{
    if (access(path, R_OK) != 0)
        return problem(error, PLUGIN_NOT_FOUND, "the plug-in %s cannot be opened: %s", path,
                       strerror(errno));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return problem(error, PLUGIN_INVALID, "%s is not a library that loads: %s", path,
                       dlerror());
    void *symbol = dlsym(library, DVP_QUERY_SYMBOL);
    if (symbol == NULL) {
        dlclose(library);
        return problem(
            error, PLUGIN_INVALID,
            "%s is a library, but no dovetail plug-in: it does not export " DVP_QUERY_SYMBOL,
            path);
    }
    memcpy(query, &symbol, sizeof symbol);
    *opened = library;
    return 0;
}

static int check_version(const char *path, const dvp_plugin *table, plugin_error *error)
{
    uint32_t major = table->abi >> 16;
    if (major != DVP_ABI_MAJOR)
        return problem(
            error, PLUGIN_INCOMPATIBLE,
            "the plug-in %s is too %s: built for plug-in ABI %u.%u, and this dovetail "
            "has %u.%u; rebuild it against this dovetail's dovetail_plugin.h",
            path, major < DVP_ABI_MAJOR ? "old" : "new", major, table->abi & 0xffff,
            DVP_ABI_MAJOR, DVP_ABI_MINOR);
    if (table->struct_size < DVP_PLUGIN_REQUIRED || table->struct_size % sizeof(void *) != 0 ||
        table->struct_size > 1u << 16)
        return problem(error, PLUGIN_INVALID,
                       "the plug-in %s has a table of %u bytes, and at least %zu are required",
                       path, table->struct_size, DVP_PLUGIN_REQUIRED);
    return 0;
}

static int check_functions(const char *path, const dvp_plugin *api, plugin_error *error)
{
    const struct {
        const char *name;
        bool there;
    } required[] = {
        {"get_info", api->get_info},
        {"device_open", api->device_open},
        {"device_close", api->device_close},
        {"device_get", api->device_get},
        {"buffer_alloc", api->buffer_alloc},
        {"buffer_free", api->buffer_free},
        {"buffer_copy", api->buffer_copy},
        {"stream_create", api->stream_create},
        {"stream_destroy", api->stream_destroy},
        {"stream_sync", api->stream_sync},
        {"event_create", api->event_create},
        {"event_destroy", api->event_destroy},
        {"event_record", api->event_record},
        {"event_wait", api->event_wait},
        {"query_op", api->query_op},
        {"find_kernel", api->find_kernel},
        {"execute", api->execute},
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!required[i].there)
            return problem(error, PLUGIN_INVALID, "the plug-in %s has no function %s", path,
                           required[i].name);
    return 0;
}

/* Compiling whole segments takes all of its functions. */
static void drop_partial_compiler(dvp_plugin *api)
{
    if (api->segment_compile && api->blob_free && api->blob_check && api->program_load &&
        api->program_free && api->program_run)
        return;
    api->segment_compile = NULL;
}

static int read_info(const char *path, plugin *p, plugin_error *error)
{
    guarded g;
    dvp_error said;
    clear(&said);
    guard(&g, sizeof(dvp_info));
    dvp_status status = p->api.get_info(&g.value.info, &said);
    p->info = g.value.info;
    if (!is_intact(&g, sizeof(dvp_info)))
        return problem(error, PLUGIN_INVALID,
                       "the plug-in %s wrote beyond the struct_size of dvp_info", path);
    if (p->info.name == NULL || p->info.version == NULL || p->info.device == NULL)
        return problem(error, PLUGIN_INVALID,
                       "the plug-in %s gives no name, version or device of itself", path);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "get_info", &said, error);
}

static int query(const char *path, dvp_query ask, plugin *p, plugin_error *error)
{
    const dvp_plugin *table = NULL;
    dvp_status status = ask(DVP_ABI, &HOST, &table);
    if (status == DVP_VERSION)
        return problem(error, PLUGIN_INCOMPATIBLE,
                       "the plug-in %s needs another plug-in ABI than this dovetail's %u.%u",
                       path, DVP_ABI_MAJOR, DVP_ABI_MINOR);
    if (status != DVP_OK || table == NULL)
        return problem(error, PLUGIN_INVALID, "the plug-in %s gives no table of functions",
                       path);
    if (check_version(path, table, error) != 0)
        return -1;
    size_t known = table->struct_size < sizeof p->api ? table->struct_size : sizeof p->api;
    memcpy(&p->api, table, known);
    drop_partial_compiler(&p->api);
    return check_functions(path, &p->api, error) || read_info(path, p, error) ? -1 : 0;
}

/* In a forked child: a device belongs to the process that opened it. The child opens its own at
 * its next use; what it has of the parent's is not touched, not even to give it back. */
static void abandon_device(void *context)
{
    plugin *p = context;
    if (p->device == NULL)
        return;
    p->device = NULL;
    p->compute = p->transfer = NULL;
    p->uploaded = p->computed = NULL;
    p->counters.buffers = 0;
    p->generation++;
}

int plugin_open(const char *path, plugin **out, plugin_error *error)
{
    dvp_query ask = NULL;
    void *library = NULL;
    if (find_query(path, &library, &ask, error) != 0)
        return -1;
    plugin *p = calloc(1, sizeof *p);
    if (p == NULL)
        return problem(error, PLUGIN_MEMORY, "no memory for the plug-in %s", path);
    if (query(path, ask, p, error) != 0) {
        free(p);
        return -1;
    }
    p->library = library;
    dvt_lock_init_long(&p->lock, abandon_device, p);
    *out = p;
    return 0;
}

/* ---- the device ---- */

static void release_device(plugin *p)
{
    if (p->uploaded != NULL)
        p->api.event_destroy(p->device, p->uploaded);
    if (p->computed != NULL)
        p->api.event_destroy(p->device, p->computed);
    if (p->transfer != NULL)
        p->api.stream_destroy(p->device, p->transfer);
    if (p->compute != NULL)
        p->api.stream_destroy(p->device, p->compute);
    p->uploaded = p->computed = NULL;
    p->transfer = p->compute = NULL;
}

int plugin_ready(plugin *p, plugin_error *error)
{
    if (p->device != NULL)
        return 0;
    dvp_error said;
    clear(&said);
    dvp_status status = p->api.device_open(0, &p->device, &said);
    if (status != DVP_OK) {
        p->device = NULL; /* whatever it left there */
        return plugin_fail(p, status, "opening the device", &said, error);
    }
    if (p->device == NULL)
        return problem(error, PLUGIN_INVALID, "the plug-in '%s' opened no device",
                       p->info.name);
    p->generation++;
    status = p->api.stream_create(p->device, &p->compute, &said);
    if (status == DVP_OK)
        status = p->api.stream_create(p->device, &p->transfer, &said);
    if (status == DVP_OK)
        status = p->api.event_create(p->device, &p->uploaded, &said);
    if (status == DVP_OK)
        status = p->api.event_create(p->device, &p->computed, &said);
    if (status != DVP_OK) {
        plugin_close(p, NULL);
        return plugin_fail(p, status, "preparing the device", &said, error);
    }
    if (p->api.device_get(p->device, "memory.used", &p->used_at_open, &said) != DVP_OK)
        p->used_at_open = -1;
    return 0;
}

void plugin_close(plugin *p, int64_t *leaked)
{
    int64_t used = 0;
    dvp_error said;
    clear(&said);
    if (leaked != NULL)
        *leaked = 0;
    if (p->device == NULL)
        return;
    release_device(p);
    if (leaked != NULL && p->used_at_open >= 0 && p->counters.buffers == 0 &&
        p->api.device_get(p->device, "memory.used", &used, &said) == DVP_OK &&
        used > p->used_at_open)
        *leaked = used - p->used_at_open;
    p->api.device_close(p->device);
    p->device = NULL;
    p->generation++;
    p->counters.buffers = 0;
}

int plugin_get(plugin *p, const char *name, int64_t *value, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    dvp_status status = p->api.device_get(p->device, name, value, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "device_get", &said, error);
}

int plugin_set(plugin *p, const char *name, int64_t value, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    if (p->api.device_set == NULL)
        return problem(error, PLUGIN_FAILED, "the plug-in '%s' has no attributes to set",
                       p->info.name);
    dvp_status status = p->api.device_set(p->device, name, value, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "device_set", &said, error);
}

int plugin_query_op(plugin *p, const dvp_op *op, dvp_answer *answer, plugin_error *error)
{
    guarded g;
    dvp_error said;
    clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    guard(&g, sizeof(dvp_answer));
    dvp_status status = p->api.query_op(p->device, op, &g.value.answer, &said);
    *answer = g.value.answer;
    if (!is_intact(&g, sizeof(dvp_answer)))
        return problem(error, PLUGIN_INVALID,
                       "the plug-in '%s' wrote beyond the struct_size of dvp_answer for %s",
                       p->info.name, op->name);
    if (status != DVP_OK)
        return plugin_fail(p, status, op->name, &said, error);
    if (answer->supported && answer->kernel == NULL)
        return problem(error, PLUGIN_INVALID, "the plug-in '%s' names no kernel for %s",
                       p->info.name, op->name);
    return 0;
}
