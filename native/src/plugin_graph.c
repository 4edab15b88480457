/* Work of a device that is recorded once and replayed: one message instead of one a kernel. */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

static plugin_graph *find(plugin_graphs *graphs, uint64_t generation, const uint64_t *key,
                          size_t count)
{
    for (int i = 0; i < PLUGIN_GRAPHS; i++) {
        plugin_graph *g = &graphs->kept[i];
        if (g->used != 0 && g->generation == generation && g->count == count &&
            memcmp(g->key, key, count * sizeof *key) == 0)
            return g;
    }
    return NULL;
}

static void drop(plugin *p, plugin_graph *g)
{
    plugin_free_graph(p, g->handle, g->generation);
    free(g->key);
    *g = (plugin_graph){0};
}

/* Takes the place of what was not used for longest. No memory: it is not noted. */
static void note(plugin *p, plugin_graphs *graphs, const uint64_t *key, size_t count)
{
    plugin_graph *oldest = &graphs->kept[0];
    for (int i = 1; i < PLUGIN_GRAPHS; i++)
        if (graphs->kept[i].used < oldest->used)
            oldest = &graphs->kept[i];
    drop(p, oldest);
    uint64_t *copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL)
        return;
    memcpy(copy, key, count * sizeof *copy);
    *oldest = (plugin_graph){
        .key = copy, .count = count, .generation = p->generation, .used = ++graphs->clock};
}

/* 0 with the handle, NULL where it cannot be recorded; -1 where the device is lost. */
static int record(plugin_lane *lane, int (*give)(void *, plugin_error *), void *context,
                  dvp_graph **made, plugin_error *error)
{
    plugin *p = lane->plugin;
    plugin_error unread;
    dvp_error said;
    plugin_clear(&said);
    *made = NULL;
    if (plugin_reserve(p, &unread) != 0)
        return 0;
    dvp_status status = p->api.capture_begin(p->device, lane->compute, &said);
    bool begun = status == DVP_OK;
    int failed = begun ? give(context, error) : 0;
    bool gone = p->device == NULL || p->lost; /* then plug-ins that are not `parallel` are
                                                 closed, and nothing is theirs any more */
    if (begun && !gone)
        status = p->api.capture_end(p->device, lane->compute, made, &said);
    if (!gone && (failed || status != DVP_OK) && *made != NULL) {
        plugin_free_graph(p, *made, p->generation);
        *made = NULL;
    } else if (*made == NULL && !gone) {
        plugin_unreserve(p);
    }
    if (gone)
        return -1;
    return status == DVP_DEVICE_LOST ? plugin_fail(p, status, "recording", &said, error) : 0;
}

static int launch(plugin_lane *lane, const plugin_graph *g, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    plugin_counted(&p->counters.replayed, 1);
    dvp_status status = p->api.graph_launch(p->device, lane->compute, g->handle, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "graph_launch", &said, error);
}

int plugin_replay(plugin_lane *lane, plugin_graphs *graphs, const uint64_t *key, size_t count,
                  int (*give)(void *context, plugin_error *error), void *context,
                  plugin_error *error)
{
    plugin *p = lane->plugin;
    if (p->api.capture_begin == NULL || !p->records || graphs->refused_at == p->generation)
        return give(context, error);
    plugin_graph *g = find(graphs, p->generation, key, count);
    if (g == NULL) {
        note(p, graphs, key, count);
        return give(context, error);
    }
    g->used = ++graphs->clock;
    if (g->handle == NULL) {
        if (record(lane, give, context, &g->handle, error) != 0)
            return -1;
        if (g->handle == NULL) {
            graphs->refused_at = p->generation;
            return give(context, error);
        }
        plugin_counted(&p->counters.recorded, 1);
    }
    return launch(lane, g, error);
}

void plugin_free_graphs(plugin *p, plugin_graphs *graphs)
{
    for (int i = 0; i < PLUGIN_GRAPHS; i++)
        drop(p, &graphs->kept[i]);
}
