/* A plug-in's device: opened when it is first needed, lanes for runs, and memory given back
 * when nothing can use it any more. */
#define _POSIX_C_SOURCE 200809L
#include "plugin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what is given back later ---- */

struct plugin_retired {
    struct plugin_retired *next;
    void *memory;          /* a buffer, or */
    dvp_program *compiled; /* a program, or */
    dvp_graph *graph;
    uint64_t generation;
    uint64_t given[PLUGIN_LANES]; /* what each lane had been given then */
};

static void push(plugin *p, struct plugin_retired **list, struct plugin_retired *one)
{
    dvt_lock_take(&p->retired_lock);
    one->next = *list;
    *list = one;
    dvt_lock_give(&p->retired_lock);
}

static struct plugin_retired *take_spare(plugin *p)
{
    dvt_lock_take(&p->retired_lock);
    struct plugin_retired *spare = p->spares;
    if (spare != NULL)
        p->spares = spare->next;
    dvt_lock_give(&p->retired_lock);
    return spare;
}

int plugin_reserve(plugin *p, plugin_error *error)
{
    struct plugin_retired *made = calloc(1, sizeof *made);
    if (made == NULL)
        return plugin_problem_is(error, PLUGIN_MEMORY, "no memory for the plug-in '%s'",
                                 p->info.name);
    push(p, &p->spares, made);
    return 0;
}

void plugin_unreserve(plugin *p)
{
    free(take_spare(p));
}

static void retire(plugin *p, struct plugin_retired what)
{
    struct plugin_retired *made = take_spare(p);
    if (made == NULL)
        return; /* the device was closed just now */
    *made = what;
    for (int i = 0; i < PLUGIN_LANES; i++)
        made->given[i] = p->lanes[i].given;
    push(p, &p->retired, made);
}

void plugin_free(plugin *p, plugin_buffer *buffer)
{
    if (buffer->memory != NULL && buffer->generation == p->generation)
        retire(p, (struct plugin_retired){.memory = buffer->memory,
                                          .generation = buffer->generation});
    buffer->memory = NULL;
}

void plugin_free_idle(plugin *p, plugin_buffer *buffer)
{
    if (buffer->memory != NULL && buffer->generation == p->generation && p->device != NULL) {
        plugin_unreserve(p);
        dvt_lock_take(&p->memory);
        p->api.buffer_free(p->device, buffer->memory);
        dvt_lock_give(&p->memory);
        plugin_counted(&p->counters.buffers, (uint64_t)-1);
    }
    buffer->memory = NULL;
}

void plugin_free_compiled(plugin *p, dvp_program *compiled, uint64_t generation)
{
    if (compiled != NULL && generation == p->generation)
        retire(p, (struct plugin_retired){.compiled = compiled, .generation = generation});
}

void plugin_free_graph(plugin *p, dvp_graph *graph, uint64_t generation)
{
    if (graph != NULL && generation == p->generation)
        retire(p, (struct plugin_retired){.graph = graph, .generation = generation});
}

static bool is_due(const plugin *p, const struct plugin_retired *r)
{
    for (int i = 0; i < PLUGIN_LANES; i++)
        if (p->lanes[i].finished < r->given[i])
            return false;
    return true;
}

/* Takes what is due, or all of it, off the list. */
static struct plugin_retired *take_retired(plugin *p, bool all)
{
    struct plugin_retired *taken = NULL, **at = &p->retired;
    dvt_lock_take(&p->retired_lock);
    while (*at != NULL) {
        struct plugin_retired *r = *at;
        if (!all && !is_due(p, r)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = taken;
        taken = r;
    }
    dvt_lock_give(&p->retired_lock);
    return taken;
}

static void give_back(plugin *p, struct plugin_retired *list)
{
    if (list == NULL)
        return;
    dvt_lock_take(&p->memory);
    while (list != NULL) {
        struct plugin_retired *next = list->next;
        bool alive = p->device != NULL && list->generation == p->generation;
        if (alive && list->memory != NULL) {
            p->api.buffer_free(p->device, list->memory);
            plugin_counted(&p->counters.buffers, (uint64_t)-1);
        }
        if (alive && list->compiled != NULL)
            p->api.program_free(p->device, list->compiled);
        if (alive && list->graph != NULL)
            p->api.graph_free(p->device, list->graph);
        free(list);
        list = next;
    }
    dvt_lock_give(&p->memory);
}

void plugin_sweep(plugin *p)
{
    if (__atomic_load_n(&p->retired, __ATOMIC_RELAXED) != NULL)
        give_back(p, take_retired(p, false));
}

/* ---- lanes ---- */

void plugin_release(plugin_lane *lane, void *memory)
{
    plugin *p = lane->plugin;
    if (p->device == NULL || !p->lost) {
        free(memory);
        return;
    }
    *(void **)memory = lane->held; /* until the device is closed, which drops its lanes */
    lane->held = memory;
}

static void destroy_streams(plugin *p, plugin_lane *lane)
{
    if (lane->uploaded != NULL)
        p->api.event_destroy(p->device, lane->uploaded);
    if (lane->computed != NULL)
        p->api.event_destroy(p->device, lane->computed);
    for (int i = 0; i < PLUGIN_MARKS; i++) {
        if (lane->marks[i] != NULL)
            p->api.event_destroy(p->device, lane->marks[i]);
        lane->marks[i] = NULL;
    }
    if (lane->transfer != NULL)
        p->api.stream_destroy(p->device, lane->transfer);
    if (lane->compute != NULL)
        p->api.stream_destroy(p->device, lane->compute);
    lane->uploaded = lane->computed = NULL;
    lane->transfer = lane->compute = NULL;
    lane->made = false;
}

static void drop_lane(plugin *p, plugin_lane *lane)
{
    destroy_streams(p, lane);
    while (lane->held != NULL) {
        void *next = *(void **)lane->held;
        free(lane->held);
        lane->held = next;
    }
    *lane = (plugin_lane){.plugin = p,
                          .kept = lane->kept,
                          .imported = lane->imported,
                          .native = lane->native,
                          .imported_at = lane->imported_at};
}

static dvp_status make_compute(plugin *p, plugin_lane *lane, dvp_error *said)
{
    if (!lane->imported)
        return p->api.stream_create(p->device, &lane->compute, said);
    lane->imported_at = p->generation;
    return p->api.stream_import(p->device, lane->native, &lane->compute, said);
}

static dvp_status make_lane(plugin *p, plugin_lane *lane, dvp_error *said)
{
    lane->plugin = p;
    dvt_lock_take(&p->memory);
    dvp_status status = make_compute(p, lane, said);
    if (status == DVP_OK)
        status = p->api.stream_create(p->device, &lane->transfer, said);
    if (status == DVP_OK)
        status = p->api.event_create(p->device, &lane->uploaded, said);
    if (status == DVP_OK)
        status = p->api.event_create(p->device, &lane->computed, said);
    if (status != DVP_OK) /* its turns go on counting, as below */
        destroy_streams(p, lane);
    dvt_lock_give(&p->memory);
    lane->made = status == DVP_OK;
    return status;
}

static void doze(plugin *p)
{
    dvt_lock_give(&p->lock);
    nanosleep(&(struct timespec){0, 200000}, NULL);
    dvt_lock_take(&p->lock);
}

/* A lane that nobody has, one with nothing left to do if there is one; NULL: all are taken. */
static plugin_lane *free_lane(plugin *p)
{
    plugin_lane *found = NULL;
    for (int i = PLUGIN_OWN_LANES - 1; i >= 0; i--) {
        plugin_lane *lane = &p->lanes[i];
        bool idle = lane->finished == lane->given;
        if (!lane->taken && (found == NULL || idle || found->finished != found->given))
            found = lane;
    }
    return found;
}

/* The lane of a buffer whose computation nobody has waited for; NULL: there is none. */
static plugin_lane *unfinished(plugin *p, const plugin_buffer *buffer)
{
    if (buffer->lane < 0 || !plugin_is_alive(p, buffer))
        return NULL;
    plugin_lane *lane = &p->lanes[buffer->lane];
    return lane->finished < buffer->given ? lane : NULL;
}

/* The lane for a run that reads these; 1: one that it needs is another's just now. */
static int choose_lane(plugin *p, plugin_buffer *const *reads, size_t count,
                       plugin_lane **chosen, plugin_error *error)
{
    *chosen = NULL;
    for (size_t i = 0; i < count; i++) {
        plugin_lane *lane = unfinished(p, reads[i]);
        if (lane == NULL || lane == *chosen)
            continue;
        if (lane->taken)
            return 1;
        if (*chosen != NULL && plugin_sync(lane, error) != 0)
            return -1;
        if (*chosen == NULL)
            *chosen = lane;
    }
    if (*chosen == NULL)
        *chosen = p->parallel ? free_lane(p) : &p->lanes[0];
    return *chosen == NULL ? 1 : 0;
}

/* The same for one lane, which follows the others that the buffers are computed on. */
static int come_after(plugin_lane *wanted, plugin_buffer *const *reads, size_t count,
                      plugin_error *error)
{
    plugin *p = wanted->plugin;
    if (wanted->taken)
        return 1;
    for (size_t i = 0; i < count; i++) {
        plugin_lane *lane = unfinished(p, reads[i]);
        if (lane == NULL || lane == wanted)
            continue;
        if (lane->taken)
            return 1;
        if (plugin_follow(wanted, lane, error) != 0)
            return -1;
    }
    return 0;
}

static int see_to_lane(plugin *p, plugin_lane *lane, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    if (lane->imported && lane->imported_at != 0 && lane->imported_at != p->generation)
        return plugin_problem_is(error, PLUGIN_LOST,
                                 "a native stream is lost with the device of plug-in '%s' that "
                                 "it was imported to: import one of the device as it is open",
                                 p->info.name);
    dvp_status status = lane->made ? DVP_OK : make_lane(p, lane, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "preparing the device", &said, error);
}

static int begin_on(plugin *p, plugin_lane *wanted, plugin_buffer *const *reads, size_t count,
                    plugin_error *error)
{
    for (int chosen = 1; chosen > 0;) {
        if (plugin_ready(p, error) != 0 || see_to_lane(p, wanted, error) != 0)
            return -1;
        chosen = come_after(wanted, reads, count, error);
        if (chosen < 0)
            return -1;
        if (chosen > 0)
            doze(p);
    }
    return 0;
}

static int begin_run(plugin *p, plugin_buffer *const *reads, size_t count, plugin_lane **lane,
                     plugin_error *error)
{
    for (int chosen = 1; chosen > 0;) {
        if (plugin_ready(p, error) != 0)
            return -1;
        chosen = choose_lane(p, reads, count, lane, error);
        if (chosen < 0)
            return -1;
        if (chosen > 0)
            doze(p);
    }
    return see_to_lane(p, *lane, error);
}

int plugin_enter(plugin *p, plugin_buffer *const *reads, size_t count, plugin_lane **entered,
                 plugin_error *error)
{
    return plugin_enter_on(p, NULL, reads, count, entered, error);
}

int plugin_enter_on(plugin *p, plugin_lane *wanted, plugin_buffer *const *reads, size_t count,
                    plugin_lane **entered, plugin_error *error)
{
    *entered = wanted;
    dvt_lock_take(&p->lock);
    int failed = wanted != NULL ? begin_on(p, wanted, reads, count, error)
                                : begin_run(p, reads, count, entered, error);
    if (failed) {
        dvt_lock_give(&p->lock);
        return -1;
    }
    plugin_sweep(p);
    (*entered)->given++;
    if (!p->parallel)
        return 0;
    (*entered)->taken = true;
    p->busy++;
    dvt_lock_give(&p->lock);
    return 0;
}

void plugin_leave(plugin_lane *lane)
{
    plugin *p = lane->plugin;
    if (p->parallel) {
        dvt_lock_take(&p->lock);
        uint64_t generation = p->generation;
        lane->taken = false;
        p->busy--;
        if (p->lost && p->busy == 0)
            plugin_close(p, NULL);
        /* Until it is closed a lost device may still write to memory of this run's caller. */
        while (p->lost && p->generation == generation)
            doze(p);
    }
    if (p->device != NULL && !p->lost)
        plugin_sweep(p);
    dvt_lock_give(&p->lock);
}

bool plugin_visit(plugin *p, uint64_t generation)
{
    dvt_lock_take(&p->lock);
    bool open = p->device != NULL && !p->lost && p->generation == generation;
    p->busy += open;
    dvt_lock_give(&p->lock);
    return open;
}

void plugin_depart(plugin *p)
{
    dvt_lock_take(&p->lock);
    p->busy--;
    if (p->lost && p->busy == 0)
        plugin_close(p, NULL);
    dvt_lock_give(&p->lock);
}

void plugin_keep_event(plugin *p, plugin_event *event)
{
    dvt_lock_take(&p->lock);
    event->next = p->events;
    p->events = event;
    dvt_lock_give(&p->lock);
}

static void destroy_event(plugin *p, plugin_event *event)
{
    dvt_lock_take(&p->memory);
    if (event->handle != NULL)
        p->api.event_destroy(p->device, event->handle);
    event->handle = NULL;
    dvt_lock_give(&p->memory);
}

void plugin_drop_event(plugin *p, plugin_event *event)
{
    dvt_lock_take(&p->lock);
    for (plugin_event **at = &p->events; *at != NULL; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    destroy_event(p, event);
    dvt_lock_give(&p->lock);
}

plugin_lane *plugin_keep_lane(plugin *p)
{
    plugin_lane *found = NULL;
    dvt_lock_take(&p->lock);
    for (int i = PLUGIN_OWN_LANES; i < PLUGIN_LANES && found == NULL; i++)
        if (!p->lanes[i].kept)
            found = &p->lanes[i];
    if (found != NULL) {
        found->kept = true;
        found->plugin = p;
    }
    dvt_lock_give(&p->lock);
    return found;
}

/* Turns go on counting: events and buffers name them. */
static void destroy_lane_streams(plugin *p, plugin_lane *lane)
{
    dvt_lock_take(&p->memory);
    destroy_streams(p, lane);
    dvt_lock_give(&p->memory);
}

int plugin_import_lane(plugin *p, plugin_lane *lane, void *native, plugin_error *error)
{
    dvt_lock_take(&p->lock);
    int failed = plugin_ready(p, error);
    if (!failed) {
        if (lane->made)
            destroy_lane_streams(p, lane);
        lane->imported = true;
        lane->native = native;
        lane->imported_at = 0;
        failed = see_to_lane(p, lane, error);
    }
    dvt_lock_give(&p->lock);
    return failed;
}

/* Its streams stay, for the next one who wants a lane; not one that is the caller's. */
void plugin_give_lane(plugin *p, plugin_lane *lane)
{
    dvt_lock_take(&p->lock);
    if (lane->imported && lane->made && p->device != NULL)
        destroy_lane_streams(p, lane);
    lane->imported = lane->kept = false;
    lane->native = NULL;
    dvt_lock_give(&p->lock);
}

void plugin_computed_on(plugin_buffer *buffer, const plugin_lane *lane)
{
    buffer->lane = (int32_t)(lane - lane->plugin->lanes);
    buffer->given = lane->given;
}

void plugin_hold(plugin *p)
{
    if (p->parallel)
        dvt_lock_take(&p->lock);
}

void plugin_let(plugin *p)
{
    if (p->parallel)
        dvt_lock_give(&p->lock);
}

/* ---- open and closed ---- */

int plugin_ready(plugin *p, plugin_error *error)
{
    while (p->lost && p->busy > 0)
        doze(p);
    if (p->lost)
        plugin_close(p, NULL);
    if (p->device != NULL)
        return 0;
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = p->api.device_open(p->index, &p->device, &said);
    if (status != DVP_OK) {
        p->device = NULL; /* whatever it left there */
        return plugin_fail(p, status, "opening the device", &said, error);
    }
    if (p->device == NULL)
        return plugin_problem_is(error, PLUGIN_INVALID, "the plug-in '%s' opened no device",
                                 p->info.name);
    p->generation++;
    status = make_lane(p, &p->lanes[0], &said);
    if (status != DVP_OK) {
        plugin_close(p, NULL);
        return plugin_fail(p, status, "preparing the device", &said, error);
    }
    if (p->api.device_get(p->device, "memory.used", &p->used_at_open, &said) != DVP_OK)
        p->used_at_open = -1;
    return 0;
}

/* What lanes were given and nobody waited for; a device that is lost is not asked. */
static void finish_lanes(plugin *p)
{
    plugin_error unread;
    for (int i = 0; i < PLUGIN_LANES && p->device != NULL && !p->lost; i++)
        if (p->lanes[i].made && p->lanes[i].finished < p->lanes[i].given)
            plugin_sync(&p->lanes[i], &unread);
}

void plugin_close(plugin *p, int64_t *leaked)
{
    int64_t used = 0;
    dvp_error said;
    plugin_clear(&said);
    if (leaked != NULL)
        *leaked = 0;
    while (p->busy > 0)
        doze(p);
    finish_lanes(p); /* which may find that it is lost, and close it */
    if (p->device == NULL) {
        p->lost = false;
        return;
    }
    give_back(p, take_retired(p, true));
    for (plugin_event *e = p->events; e != NULL; e = e->next)
        destroy_event(p, e);
    for (int i = 0; i < PLUGIN_LANES; i++)
        if (p->lanes[i].made)
            drop_lane(p, &p->lanes[i]);
    if (leaked != NULL && !p->lost && p->used_at_open >= 0 && p->counters.buffers == 0 &&
        p->api.device_get(p->device, "memory.used", &used, &said) == DVP_OK &&
        used > p->used_at_open)
        *leaked = used - p->used_at_open;
    p->api.device_close(p->device);
    p->device = NULL;
    p->lost = false;
    p->generation++;
    p->counters.buffers = 0;
    for (struct plugin_retired *spare; (spare = take_spare(p)) != NULL;)
        free(spare);
}

bool plugin_is_alive(const plugin *p, const plugin_buffer *buffer)
{
    if (buffer->generation != p->generation || p->lost)
        return false;
    const plugin_lane *lane = buffer->lane < 0 ? NULL : &p->lanes[buffer->lane];
    return lane == NULL || buffer->given < lane->bad_first || buffer->given > lane->bad_last;
}

/* ---- questions ---- */

int plugin_get(plugin *p, const char *name, int64_t *value, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    plugin_sweep(p);
    dvt_lock_take(&p->memory);
    dvp_status status = p->api.device_get(p->device, name, value, &said);
    dvt_lock_give(&p->memory);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "device_get", &said, error);
}

int plugin_set(plugin *p, const char *name, int64_t value, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    if (p->api.device_set == NULL)
        return plugin_problem_is(error, PLUGIN_FAILED,
                                 "the plug-in '%s' has no attributes to set", p->info.name);
    while (p->busy > 0)
        doze(p);
    if (plugin_ready(p, error) != 0)
        return -1;
    dvp_status status = p->api.device_set(p->device, name, value, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "device_set", &said, error);
}

int plugin_describe(plugin *p, dvp_device_info *info, plugin_error *error)
{
    plugin_guarded g;
    dvp_error said;
    plugin_clear(&said);
    plugin_guard(&g, sizeof(dvp_device_info));
    dvp_status status = p->api.device_describe == NULL
                            ? DVP_OK
                            : p->api.device_describe(p->index, &g.value.device, &said);
    *info = g.value.device;
    if (!plugin_is_intact(&g, sizeof(dvp_device_info)))
        return plugin_problem_is(error, PLUGIN_INVALID,
                                 "the plug-in '%s' wrote beyond the struct_size of "
                                 "dvp_device_info",
                                 p->info.name);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "device_describe", &said, error);
}

int plugin_query_op(plugin *p, const dvp_op *op, dvp_answer *answer, plugin_error *error)
{
    plugin_guarded g;
    dvp_error said;
    plugin_clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    plugin_guard(&g, sizeof(dvp_answer));
    dvp_status status = p->api.query_op(p->device, op, &g.value.answer, &said);
    *answer = g.value.answer;
    if (!plugin_is_intact(&g, sizeof(dvp_answer)))
        return plugin_problem_is(
            error, PLUGIN_INVALID,
            "the plug-in '%s' wrote beyond the struct_size of dvp_answer for %s", p->info.name,
            op->name);
    if (status != DVP_OK)
        return plugin_fail(p, status, op->name, &said, error);
    if (answer->supported && answer->kernel == NULL)
        return plugin_problem_is(error, PLUGIN_INVALID,
                                 "the plug-in '%s' names no kernel for %s", p->info.name,
                                 op->name);
    return 0;
}
