/* Loading plug-ins and opening their devices. */
#include "plugin.h"

#include "plugin_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATTERN = 0xA5 };

int plugin_problem_is(plugin_error *error, plugin_problem kind, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    error->problem = kind;
    return -1;
}

void plugin_guard(plugin_guarded *g, uint32_t size)
{
    memset(g, 0, sizeof g->value);
    memset(g->value.bytes + size, PATTERN, sizeof *g - size);
    memcpy(g->value.bytes, &size, sizeof size);
}

bool plugin_is_intact(const plugin_guarded *g, uint32_t size)
{
    uint32_t claimed;
    memcpy(&claimed, g->value.bytes, sizeof claimed);
    for (const unsigned char *b = g->value.bytes + size; b < g->guard + PLUGIN_GUARD; b++)
        if (*b != PATTERN)
            return false;
    return claimed >= sizeof claimed && claimed <= size;
}

int plugin_fail(plugin *p, dvp_status status, const char *what, const dvp_error *said,
                plugin_error *error)
{
    char words[sizeof said->message];
    memcpy(words, said->message, sizeof words);
    words[sizeof words - 1] = 0;
    plugin_problem kind = PLUGIN_FAILED;
    if (status == DVP_DEVICE_LOST || status == DVP_TIMEOUT) {
        p->lost = true;
        kind = status == DVP_TIMEOUT ? PLUGIN_TIMEOUT : PLUGIN_LOST;
        if (!p->parallel) /* else when the last run leaves */
            plugin_close(p, NULL);
    } else if (status == DVP_NO_MEMORY) {
        kind = PLUGIN_MEMORY;
    }
    bool gone = kind == PLUGIN_LOST || kind == PLUGIN_TIMEOUT;
    return plugin_problem_is(error, kind, "the plug-in '%s' failed in %s: %s%s", p->info.name,
                             what, words[0] ? words : "it gave no reason",
                             gone ? " (the device is lost; the next call opens it again)" : "");
}

/* ---- loading ---- */

static int find_query(const char *path, void **opened, dvp_query *query, plugin_error *error)
{
    if (access(path, R_OK) != 0)
        return plugin_problem_is(error, PLUGIN_NOT_FOUND, "the plug-in %s cannot be opened: %s",
                                 path, strerror(errno));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return plugin_problem_is(error, PLUGIN_INVALID, "%s is not a library that loads: %s",
                                 path, dlerror());
    void *symbol = dlsym(library, DVP_QUERY_SYMBOL);
    if (symbol == NULL) {
        dlclose(library);
        return plugin_problem_is(
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
        return plugin_problem_is(
            error, PLUGIN_INCOMPATIBLE,
            "the plug-in %s is too %s: built for plug-in ABI %u.%u, and this dovetail "
            "has %u.%u; rebuild it against this dovetail's dovetail_plugin.h",
            path, major < DVP_ABI_MAJOR ? "old" : "new", major, table->abi & 0xffff,
            DVP_ABI_MAJOR, DVP_ABI_MINOR);
    if (table->struct_size < DVP_PLUGIN_REQUIRED || table->struct_size % sizeof(void *) != 0 ||
        table->struct_size > 1u << 16)
        return plugin_problem_is(
            error, PLUGIN_INVALID,
            "the plug-in %s has a table of %u bytes, and at least %zu are required", path,
            table->struct_size, DVP_PLUGIN_REQUIRED);
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
            return plugin_problem_is(error, PLUGIN_INVALID, "the plug-in %s has no function %s",
                                     path, required[i].name);
    return 0;
}

/* Compiling whole segments takes all of its functions, and so does recording. */
static void drop_partial_groups(dvp_plugin *api)
{
    if (!api->capture_begin || !api->capture_end || !api->graph_launch || !api->graph_free)
        api->capture_begin = NULL;
    if (api->segment_compile && api->blob_free && api->blob_check && api->program_load &&
        api->program_free && api->program_run)
        return;
    api->segment_compile = NULL;
}

/* So does packing constants. */
static void drop_partial_packing(dvp_plugin *api)
{
    if (api->constant_pack && api->packed_free && api->constant_accept)
        return;
    api->constant_pack = NULL;
    api->constant_accept = NULL;
}

static int read_info(const char *path, plugin *p, plugin_error *error)
{
    plugin_guarded g;
    dvp_error said;
    plugin_clear(&said);
    plugin_guard(&g, sizeof(dvp_info));
    dvp_status status = p->api.get_info(&g.value.info, &said);
    p->info = g.value.info;
    if (!plugin_is_intact(&g, sizeof(dvp_info)))
        return plugin_problem_is(error, PLUGIN_INVALID,
                                 "the plug-in %s wrote beyond the struct_size of dvp_info",
                                 path);
    if (p->info.name == NULL || p->info.version == NULL || p->info.device == NULL)
        return plugin_problem_is(error, PLUGIN_INVALID,
                                 "the plug-in %s gives no name, version or device of itself",
                                 path);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "get_info", &said, error);
}

static int query(const char *path, dvp_query ask, plugin *p, plugin_error *error)
{
    const dvp_plugin *table = NULL;
    dvp_status status = ask(DVP_ABI, &PLUGIN_HOST, &table);
    if (status == DVP_VERSION)
        return plugin_problem_is(
            error, PLUGIN_INCOMPATIBLE,
            "the plug-in %s needs another plug-in ABI than this dovetail's %u.%u", path,
            DVP_ABI_MAJOR, DVP_ABI_MINOR);
    if (status != DVP_OK || table == NULL)
        return plugin_problem_is(error, PLUGIN_INVALID,
                                 "the plug-in %s gives no table of functions", path);
    if (check_version(path, table, error) != 0)
        return -1;
    size_t known = table->struct_size < sizeof p->api ? table->struct_size : sizeof p->api;
    memcpy(&p->api, table, known);
    drop_partial_packing(&p->api);
    drop_partial_groups(&p->api);
    return check_functions(path, &p->api, error) || read_info(path, p, error) ? -1 : 0;
}

/* In a forked child: a device belongs to the process that opened it. The child opens its own at
 * its next use; what it has of the parent's is not touched, not even to give it back. */
static void abandon_device(void *context)
{
    plugin *p = context;
    p->retired = NULL;
    p->busy = 0;
    p->lost = false;
    if (p->device == NULL)
        return;
    p->device = NULL;
    for (plugin_event *e = p->events; e != NULL; e = e->next)
        e->handle = NULL;
    for (int i = 0; i < PLUGIN_LANES; i++)
        p->lanes[i] = (plugin_lane){.plugin = p,
                                    .kept = p->lanes[i].kept,
                                    .imported = p->lanes[i].imported,
                                    .imported_at = UINT64_MAX};
    p->counters.buffers = 0;
    p->generation++;
}

/* Seconds that a device may take for what it was given, before it counts as lost. */
static uint64_t read_timeout(void)
{
    const char *text = getenv("DOVETAIL_DEVICE_TIMEOUT");
    double seconds = text == NULL ? 300 : strtod(text, NULL);
    return seconds > 0 && seconds < 1e9 ? (uint64_t)(seconds * 1e9) : 0;
}

int plugin_open(const char *path, int32_t index, plugin **out, plugin_error *error)
{
    dvp_query ask = NULL;
    void *library = NULL;
    if (find_query(path, &library, &ask, error) != 0)
        return -1;
    plugin *p = calloc(1, sizeof *p);
    if (p == NULL)
        return plugin_problem_is(error, PLUGIN_MEMORY, "no memory for the plug-in %s", path);
    if (query(path, ask, p, error) != 0) {
        free(p);
        return -1;
    }
    uint32_t count = p->info.device_count > 0 ? p->info.device_count : 1;
    if (index < 0 || (uint32_t)index >= count) {
        free(p);
        return plugin_problem_is(error, PLUGIN_NOT_FOUND,
                                 "the plug-in %s has no device %d: it has %u", path, index,
                                 count);
    }
    p->library = library;
    p->index = index;
    p->parallel = p->info.flags & DVP_PARALLEL_STREAMS;
    p->timeout = read_timeout();
    const char *graphs = getenv("DOVETAIL_DEVICE_GRAPHS");
    p->records = graphs == NULL || strcmp(graphs, "0") != 0;
    dvt_lock_init_long(&p->lock, abandon_device, p);
    dvt_lock_init_long(&p->memory, NULL, NULL);
    dvt_lock_init_brief(&p->retired_lock);
    *out = p;
    return 0;
}

void plugin_drop(plugin *p)
{
    dvt_lock_destroy(&p->lock);
    dvt_lock_destroy(&p->memory);
    dvt_lock_destroy(&p->retired_lock);
    free(p);
}
