/* Instructions on a device while a program runs. A device's turn begins with the first of them:
 * its lock is taken and what the frame needs is on it. It ends before the host does anything.
 */
#include "device_state.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- everything a frame needs on a device as it is open now ---- */

/* Leaves a constant where it is, for a device that uses it there: 1. 0: it has to be copied.
 * The file's memory outlives what is made of it. */
static int import_weight(plugin *p, const uint8_t *data, uint64_t bytes, plugin_buffer *weight,
                         plugin_error *error)
{
    void *address = (void *)(uintptr_t)data;
    plugin_error refused = {0};
    if (!(p->info.flags & DVP_IMPORTED_CONSTANTS) || p->api.memory_import == NULL || bytes == 0)
        return 0;
    if (plugin_alloc_kind(p, DVP_MEMORY_IMPORTED, bytes, weight, &address, &refused) == 0)
        return 1;
    weight->memory = NULL;
    if (refused.problem == PLUGIN_FAILED) /* another memory than it can use: a copy will do */
        return 0;
    *error = refused;
    return -1;
}

static int send_weights(dvt_artifact *a, uint32_t device, plugin_lane *lane, bool *sent,
                        plugin_error *error)
{
    device_state *s = &a->devices[device - 1];
    const uint8_t *constants = a->file.sections[DVT_CONSTANTS].data;
    for (uint32_t i = 0; i < a->program.buffer_count; i++) {
        const buffer_record *b = &a->program.buffers[i];
        plugin_buffer *w = &s->weights[i];
        if (b->device != device || b->kind != KIND_CONSTANT ||
            (w->memory != NULL && w->generation == s->plugin->generation))
            continue;
        int stays = import_weight(s->plugin, constants + b->data_at, b->data_size, w, error);
        if (stays < 0)
            return -1;
        if (stays > 0)
            continue;
        *sent = true;
        if (plugin_alloc(s->plugin, b->data_size, w, error) != 0)
            return -1;
        if (plugin_upload(lane, w, 0, constants + b->data_at, b->data_size, error) != 0) {
            plugin_free(s->plugin, w);
            return -1;
        }
    }
    return 0;
}

static int load_blobs(dvt_artifact *a, uint32_t device, plugin_error *error)
{
    device_state *s = &a->devices[device - 1];
    const struct device_table *t = a->program.table;
    if (s->loaded != s->plugin->generation) /* the handles are dead with the device */
        memset(s->programs, 0, t->blob_count * sizeof *s->programs);
    s->loaded = s->plugin->generation;
    for (uint32_t i = 0; i < t->blob_count; i++)
        if (t->blobs[i].device == device && s->programs[i] == NULL &&
            plugin_load_blob(s->plugin, t->blobs[i].data, t->blobs[i].size, &s->programs[i],
                             error) != 0)
            return -1;
    return 0;
}

static void place_buffers(frame *f, uint32_t device)
{
    const dvt_artifact *a = f->devices->artifact;
    const program *p = &a->program;
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        const buffer_record *b = &p->buffers[i];
        if (b->device != device || p->buffers[b->root].is_placed)
            continue;
        bool constant = p->buffers[b->root].kind == KIND_CONSTANT;
        dvt_device_point(f, i,
                         constant ? &a->devices[device - 1].weights[b->root]
                                  : &f->devices->arenas[device - 1].memory);
    }
}

static void place_operand(const frame *f, uint32_t buffer, dvp_tensor *t)
{
    t->data = f->tensors[buffer].data;
    t->byte_offset = f->tensors[buffer].byte_offset;
}

static void place_operands(frame *f, const launch *l)
{
    dvp_tensor *tensors = f->devices->tensors + l->in->pointers_at;
    for (uint32_t i = 0; i < l->in->output_count; i++)
        if (l->in->outputs[i] != DVT_NONE)
            place_operand(f, l->in->outputs[i], &tensors[i]);
    tensors += l->in->output_count;
    for (uint32_t i = 0; i < l->in->input_count; i++)
        if (l->in->inputs[i] != DVT_NONE)
            place_operand(f, l->in->inputs[i], &tensors[i]);
}

void dvt_device_place_launches(frame *f, uint32_t device)
{
    for (uint32_t i = 0; i < f->devices->artifact->program.launch_count; i++)
        if (f->devices->launches[i].in->device == device)
            place_operands(f, &f->devices->launches[i]);
}

static int find_kernels(frame *f, uint32_t device, plugin_error *error)
{
    const dvt_artifact *a = f->devices->artifact;
    plugin *p = a->devices[device - 1].plugin;
    for (uint32_t i = 0; i < a->program.launch_count; i++) {
        launch *l = &f->devices->launches[i];
        if (l->in->device == device && l->kernel_name != NULL &&
            plugin_find_kernel(p, l->kernel_name, l->least, l->greatest, l->op.name, &l->kernel,
                               error) != 0)
            return -1;
    }
    return 0;
}

static int bind_device(frame *f, uint32_t device, plugin_lane *lane, bool *sent,
                       plugin_error *error)
{
    dvt_artifact *a = f->devices->artifact;
    device_arena *arena = &f->devices->arenas[device - 1];
    plugin *p = a->devices[device - 1].plugin;
    if (send_weights(a, device, lane, sent, error) != 0 || load_blobs(a, device, error) != 0)
        return -1;
    bool held = arena->memory.memory != NULL && arena->memory.generation == p->generation;
    if (!held && plugin_alloc(p, arena->bytes, &arena->memory, error) != 0)
        return -1;
    place_buffers(f, device);
    dvt_device_place_launches(f, device);
    if (find_kernels(f, device, error) != 0)
        return -1;
    arena->placement = 0;
    arena->bound = p->generation;
    arena->epoch = a->devices[device - 1].epoch;
    return 0;
}

/* ---- turns ---- */

void dvt_device_start(frame *f)
{
    if (f->devices == NULL)
        return;
    for (uint32_t i = 0; i < f->devices->artifact->program.table->device_count; i++)
        f->devices->arenas[i].in_use = false;
}

/* What was sent in a turn that failed may not have arrived; the plug-in is held. */
static void drop_weights(frame *f, uint32_t device)
{
    dvt_artifact *a = f->devices->artifact;
    device_state *s = &a->devices[device - 1];
    for (uint32_t i = 0; i < a->program.buffer_count; i++)
        plugin_free(s->plugin, &s->weights[i]);
    s->epoch++;
}

static dvt_status bind_state(frame *f, device_turn *turn, bool fresh, dvt_error *error)
{
    plugin_error problem = {0};
    bool sent = false;
    if (dvt_device_show(f, turn->device, fresh))
        dvt_device_place_launches(f, turn->device);
    if (f->devices->artifact->resident_count == 0)
        return DVT_OK;
    int failed =
        (turn->launches && plugin_await_kernels(turn->lane, &problem) != 0) ||
        dvt_device_state_bind(f, turn->state, turn->device, turn->lane, &sent, &problem);
    turn->uploads |= sent;
    turn->must_wait |= sent;
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

static bool is_here(const device_tensor *t, const plugin *p)
{
    return t->buffer != NULL && t->buffer->plugin == p;
}

/* What a turn on a device reads and writes that other lanes may still be at work on. */
static plugin_buffer **list_shared(frame *f, uint32_t device, const dvt_state *state,
                                   size_t *count)
{
    const dvt_artifact *a = f->devices->artifact;
    const plugin *p = a->devices[device - 1].plugin;
    size_t most = (size_t)a->resident_count + a->program.input_count + a->program.output_count;
    plugin_buffer **made = calloc(most + 1, sizeof *made);
    *count = 0;
    if (made == NULL)
        return NULL;
    for (uint32_t i = 0; state != NULL && i < a->resident_count; i++)
        if (a->residents[i].device == device && state->held[i].now.memory != NULL)
            made[(*count)++] = &state->held[i].now;
    for (uint32_t i = 0; i < a->program.input_count; i++)
        if (is_here(&f->devices->inputs[i], p))
            made[(*count)++] = &f->devices->inputs[i].buffer->memory;
    for (uint32_t i = 0; i < a->program.output_count; i++)
        if (is_here(&f->devices->outputs[i], p))
            made[(*count)++] = &f->devices->outputs[i].buffer->memory;
    return made;
}

/* Whether a run would read what was lost, or write to memory that is not there any more. */
static bool tensors_are_lost(const frame *f, const plugin *p, plugin_error *error)
{
    const program *all = &f->devices->artifact->program;
    const struct device_frame *d = f->devices;
    for (uint32_t i = 0; i < all->input_count; i++)
        if (is_here(&d->inputs[i], p) && dvt_buffer_is_lost(d->inputs[i].buffer, error) != 0)
            return true;
    for (uint32_t i = 0; i < all->output_count; i++)
        if (is_here(&d->outputs[i], p) &&
            d->outputs[i].buffer->memory.generation != p->generation &&
            dvt_buffer_is_lost(d->outputs[i].buffer, error) != 0)
            return true;
    return false;
}

static int enter_lane(frame *f, uint32_t device, const device_turn *turn, plugin_lane **lane,
                      plugin_error *error)
{
    plugin *p = f->devices->artifact->devices[device - 1].plugin;
    bool streams = turn->stream != NULL && turn->stream->plugin == p;
    size_t count;
    plugin_buffer **shared = list_shared(f, device, turn->state, &count);
    if (shared == NULL)
        return plugin_problem_is(error, PLUGIN_MEMORY, "out of memory");
    int failed = plugin_enter_on(p, streams ? turn->stream : NULL, shared, count, lane, error);
    if (!failed && tensors_are_lost(f, p, error)) {
        plugin_leave(*lane);
        failed = -1;
    }
    free(shared);
    return failed;
}

static dvt_status enter(frame *f, uint32_t device, device_turn *turn, dvt_error *error)
{
    const device_state *s = &f->devices->artifact->devices[device - 1];
    plugin *p = s->plugin;
    device_arena *arena = &f->devices->arenas[device - 1];
    plugin_error problem = {0};
    plugin_lane *lane;
    if (enter_lane(f, device, turn, &lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    *turn = (device_turn){.plugin = p,
                          .lane = lane,
                          .device = device,
                          .state = turn->state,
                          .stream = turn->stream,
                          .waits = turn->waits,
                          .launches = lane->finished + 1 < lane->given};
    if (arena->bound == p->generation && arena->epoch == s->epoch) {
        arena->in_use = true;
        return bind_state(f, turn, false, error);
    }
    if (arena->in_use)
        return dvt_fail(
            error, DVT_ERROR_DEVICE_LOST,
            "the device of plug-in '%.60s' was closed or lost while the program ran; "
            "the next call sends it again what it needs",
            p->info.name);
    plugin_hold(p); /* weights are the artifact's, not the run's */
    int failed = bind_device(f, device, lane, &turn->sent_weights, &problem);
    turn->uploads = turn->must_wait = turn->sent_weights;
    if (p->parallel && turn->sent_weights) { /* other lanes may read them next */
        failed = failed || plugin_sync(lane, &problem) != 0;
        if (failed)
            drop_weights(f, device);
        turn->sent_weights = false; /* they are everybody's now */
    }
    plugin_let(p);
    arena->in_use = true;
    return failed ? dvt_plugin_failed(&problem, error) : bind_state(f, turn, true, error);
}

dvt_status dvt_device_leave(frame *f, device_turn *turn, dvt_status status, dvt_error *error)
{
    plugin *p = turn->plugin;
    if (p == NULL)
        return status;
    plugin_error problem = {0};
    int failed = 0;
    if (p->device != NULL && !p->lost)
        failed = plugin_sync(turn->lane, &problem);
    else if (status ==
             DVT_OK) /* another run found it lost: what this one sent may not be there */
        failed = plugin_problem_is(&problem, PLUGIN_LOST,
                                   "the device of plug-in '%s' was lost while the program ran",
                                   p->info.name);
    if (status == DVT_OK && failed)
        status = dvt_plugin_failed(&problem, error);
    if (status != DVT_OK && turn->sent_weights) {
        plugin_hold(p);
        drop_weights(f, turn->device);
        plugin_let(p);
    }
    dvt_device_state_arrived(f->devices->artifact, turn->state, turn->device, status == DVT_OK);
    plugin_leave(turn->lane);
    *turn = (device_turn){.state = turn->state, .stream = turn->stream, .waits = turn->waits};
    return status;
}

/* Leaves a caller's stream at work. */
static dvt_status fly(frame *f, device_turn *turn, dvt_event *done, dvt_error *error)
{
    plugin_lane *lane = turn->lane;
    plugin_error problem = {0};
    if ((turn->uploads && plugin_await_uploads(lane, &problem) != 0) ||
        (done != NULL && dvt_event_set(done, lane, &problem) != 0))
        return dvt_device_leave(f, turn, dvt_plugin_failed(&problem, error), error);
    f->devices->flies_on = lane;
    f->devices->turn = lane->given;
    f->devices->generation = lane->plugin->generation;
    if (turn->state != NULL)
        dvt_device_state_commit(f->devices->artifact, turn->state, lane, true);
    plugin_leave(lane);
    return DVT_OK;
}

dvt_status dvt_device_end(frame *f, device_turn *turn, dvt_event *done, dvt_status status,
                          dvt_error *error)
{
    const plugin *p = turn->plugin;
    if (done != NULL)
        dvt_event_unset(done);
    if (status == DVT_OK && p != NULL && turn->stream == turn->lane && !turn->must_wait &&
        !turn->waits && p->device != NULL && !p->lost)
        return fly(f, turn, done != NULL && done->plugin == p ? done : NULL, error);
    status = dvt_device_leave(f, turn, status, error);
    if (f->devices != NULL && turn->state != NULL)
        dvt_device_state_commit(f->devices->artifact, turn->state, NULL, status == DVT_OK);
    return status;
}

bool dvt_device_is_free(const frame *f, const plugin_lane *stream)
{
    const struct device_frame *d = f->devices;
    return d == NULL || d->flies_on == NULL || d->flies_on == stream ||
           d->flies_on->plugin->generation != d->generation || d->flies_on->finished >= d->turn;
}

/* ---- instructions ---- */

static int upload(device_turn *turn, const dvt_tensor *to, uint64_t skip, const void *from,
                  uint64_t bytes, plugin_error *error)
{
    if (turn->launches && plugin_await_kernels(turn->lane, error) != 0)
        return -1;
    turn->launches = false;
    turn->uploads = true;
    plugin_buffer target = {.memory = to->data};
    return plugin_upload(turn->lane, &target, to->byte_offset + skip, from, bytes, error);
}

/* Clears what must be before an instruction, by sending zeros. */
static int clear(frame *f, uint32_t at, device_turn *turn, plugin_error *error)
{
    for (; f->clearing_next < f->clearing_count; f->clearing_next++) {
        const clearing *c = &f->clearings[f->clearing_next];
        if (c->at != at)
            break;
        turn->must_wait = true; /* the zeros are the frame's */
        if (upload(turn, &f->tensors[c->buffer], c->begin, f->zeros, c->end - c->begin,
                   error) != 0)
            return -1;
    }
    return 0;
}

/* To memory that is not the program's: only the elements, not what lies between them. */
static int download_elements(plugin_lane *lane, const dvt_tensor *to, const dvt_tensor *from,
                             uint64_t bytes, plugin_error *error)
{
    dvt_tensor between = *to;
    between.byte_offset = 0;
    between.data = malloc((size_t)bytes < sizeof(void *) ? sizeof(void *) : (size_t)bytes);
    if (between.data == NULL) {
        *error = (plugin_error){PLUGIN_MEMORY, "out of memory"};
        return -1;
    }
    plugin_buffer source = {.memory = from->data};
    int failed = plugin_download(lane, between.data, &source, from->byte_offset, bytes, error);
    plugin_error unread;
    plugin *p = lane->plugin;
    if (p->device == NULL || p->lost)
        failed = failed
                     ? failed
                     : plugin_problem_is(error, PLUGIN_LOST,
                                         "the device of plug-in '%s' was lost", p->info.name);
    else if (plugin_sync(lane, failed ? &unread : error) != 0)
        failed = -1;
    if (!failed)
        dvt_copy_tensor(to, &between);
    plugin_release(lane, between.data);
    return failed;
}

/* Within the device, if it is state that stays there. */
static int copy_state(frame *f, const instruction *in, device_turn *turn, bool *handled,
                      plugin_error *error)
{
    if (turn->uploads && plugin_await_uploads(turn->lane, error) != 0)
        return -1;
    turn->uploads = false;
    turn->launches = true;
    return dvt_device_state_copy(f, in, turn->state, turn->lane, handled, error);
}

/* The caller's tensor on a device that a copy reads or fills; NULL: there is none. */
static const device_tensor *device_side(const frame *f, const instruction *in)
{
    const program *p = &f->devices->artifact->program;
    bool fills = p->buffers[in->outputs[0]].device == 0;
    uint32_t host = fills ? in->outputs[0] : in->inputs[0];
    const device_tensor *all = p->buffers[host].kind == KIND_INPUT    ? f->devices->inputs
                               : p->buffers[host].kind == KIND_OUTPUT ? f->devices->outputs
                                                                      : NULL;
    const uint32_t *list = p->buffers[host].kind == KIND_INPUT ? p->inputs : p->outputs;
    uint32_t count = p->buffers[host].kind == KIND_INPUT ? p->input_count : p->output_count;
    for (uint32_t i = 0; all != NULL && i < count; i++)
        if (list[i] == host)
            return all[i].buffer != NULL ? &all[i] : NULL;
    return NULL;
}

static int copy_within(frame *f, const instruction *in, const device_tensor *there,
                       device_turn *turn, plugin_error *error)
{
    bool fills = f->devices->artifact->program.buffers[in->outputs[0]].device == 0;
    const dvt_tensor *other = &f->tensors[fills ? in->inputs[0] : in->outputs[0]];
    uint64_t bytes = f->extents[in->outputs[0]];
    plugin_buffer arena = {.memory = other->data};
    if (fills)
        plugin_computed_on(&there->buffer->memory, turn->lane);
    if (there->in_place)
        return 0;
    if (turn->uploads && plugin_await_uploads(turn->lane, error) != 0)
        return -1;
    turn->uploads = false;
    turn->launches = true;
    if (!fills)
        return plugin_move(turn->lane, &arena, other->byte_offset, &there->buffer->memory,
                           there->offset, bytes, error);
    return plugin_move(turn->lane, &there->buffer->memory, there->offset, &arena,
                       other->byte_offset, bytes, error);
}

/* Whether a copy uses memory of the host's that the caller knows nothing of, or whose contents
 * this run hands on. */
static void note_host_memory(const frame *f, const instruction *in, device_turn *turn)
{
    const program *p = &f->devices->artifact->program;
    bool fills = p->buffers[in->outputs[0]].device == 0;
    uint32_t root = p->buffers[fills ? in->outputs[0] : in->inputs[0]].root;
    uint8_t kind = p->buffers[root].kind;
    bool callers = kind == KIND_INPUT || (fills && kind == KIND_OUTPUT) ||
                   (!fills && kind == KIND_CONSTANT);
    for (uint32_t i = 0; kind == KIND_INPUT && i < p->input_count; i++)
        callers = callers && (p->inputs[i] != root || f->copies[i] == NULL);
    turn->must_wait |= !callers;
}

bool dvt_device_copy_is_free(const frame *f, const instruction *in)
{
    const dvt_artifact *a = f->devices->artifact;
    const buffer_record *buffers = a->program.buffers;
    uint32_t to = buffers[in->outputs[0]].resident, from = buffers[in->inputs[0]].resident;
    if (to != 0)
        return a->residents[to - 1].writer != DVT_NONE;
    if (from != 0)
        return a->residents[from - 1].reader != DVT_NONE;
    const device_tensor *there = device_side(f, in);
    return there != NULL && there->in_place;
}

static int copy(frame *f, uint32_t at, const instruction *in, device_turn *turn,
                plugin_error *error)
{
    const buffer_record *buffers = f->devices->artifact->program.buffers;
    bool stays = buffers[in->outputs[0]].resident != 0 || buffers[in->inputs[0]].resident != 0;
    if (stays)
        return copy_state(f, in, turn, &stays, error);
    const device_tensor *there = device_side(f, in);
    if (there != NULL)
        return copy_within(f, in, there, turn, error);
    note_host_memory(f, in, turn);
    const dvt_tensor *to = &f->tensors[in->outputs[0]], *from = &f->tensors[in->inputs[0]];
    uint64_t bytes = f->extents[in->outputs[0]]; /* both have one layout, and it is no view */
    if (to->device.type != DVT_CPU) {
        dvt_device_note_pending(f, at, in, turn);
        return upload(turn, to, 0, from->data, bytes, error);
    }
    if (turn->uploads && plugin_await_uploads(turn->lane, error) != 0)
        return -1;
    turn->uploads = false;
    turn->launches = true; /* what it reads may be the next upload's place */
    uint8_t kind = f->devices->artifact->program.buffers[in->outputs[0]].kind;
    if (f->gaps[in->outputs[0]] && kind != KIND_OUTPUT && kind != KIND_TEMPORARY)
        return download_elements(turn->lane, to, from, bytes, error);
    plugin_buffer source = {.memory = from->data};
    if (plugin_download(turn->lane, to->data, &source, from->byte_offset, bytes, error) != 0)
        return -1;
    dvt_device_note_pending(f, at, in, turn);
    return 0;
}

dvt_status dvt_device_step(frame *f, uint32_t at, const instruction *in, device_turn *turn,
                           dvt_error *error)
{
    if (turn->device != in->device) {
        dvt_status status = dvt_device_leave(f, turn, DVT_OK, error);
        if (status == DVT_OK)
            status = enter(f, in->device, turn, error);
        if (status != DVT_OK)
            return status;
    }
    plugin_error problem; /* large, so only its first word is set */
    problem.problem = PLUGIN_OK;
    int failed = clear(f, at, turn, &problem);
    if (!failed)
        failed = in->opcode == OP_COPY ? copy(f, at, in, turn, &problem)
                                       : dvt_device_launch(f, at, in, turn, &problem);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}
