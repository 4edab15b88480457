/* State that stays on a device. Where one device alone reads and writes a buffer of state, by
 * copies, the device keeps it from call to call: a decoder's cache never visits the host unless
 * somebody looks at it. Reading shows the memory to the kernels where it lies, and writing
 * exchanges it for the memory that the new value was computed in, wherever that means the same;
 * elsewhere both are copies within the device. */
#include "device_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- which state stays, worked out when an artifact is opened ---- */

typedef struct {
    uint32_t device;              /* the only one that touches it; 0: it cannot stay */
    uint32_t reads, writes;       /* copies from it and to it */
    uint32_t last_read, write_at; /* instructions */
    uint32_t reader, writer;      /* the other side of the last of each */
} state_use;

/* What is known of a device's temporary, by its root. */
typedef struct {
    uint32_t writes, last_write, last_touch;
    bool shared; /* other temporaries take its memory over */
} temporary_use;

static bool is_fixed(const dvt_artifact *a, const buffer_record *b)
{
    for (uint32_t i = 0; i < 2u * b->rank; i++)
        if (a->fixed_sizes[b->dims[i]] < 0)
            return false;
    return true;
}

static void use_state(const program *p, const instruction *in, uint32_t at, uint32_t buffer,
                      bool writes, state_use *use)
{
    bool copies = in->opcode == OP_COPY && in->device != 0 && p->buffers[buffer].root == buffer;
    if (!copies || (use->device != 0 && use->device != in->device)) {
        use->device = DVT_NONE;
        return;
    }
    use->device = in->device;
    if (writes) {
        use->writes++;
        use->write_at = at;
        use->writer = in->inputs[0];
    } else {
        use->reads++;
        use->last_read = at;
        use->reader = in->outputs[0];
    }
}

static void use_buffer(const program *p, const instruction *in, uint32_t at, uint32_t buffer,
                       bool writes, state_use *states, temporary_use *temporaries)
{
    uint32_t root = p->buffers[buffer].root;
    if (p->buffers[root].kind == KIND_STATE) {
        if (states[root].device != DVT_NONE)
            use_state(p, in, at, buffer, writes, &states[root]);
        return;
    }
    temporaries[root].last_touch = at;
    if (writes) {
        temporaries[root].writes++;
        temporaries[root].last_write = at;
    }
}

static void look(const program *p, state_use *states, temporary_use *temporaries)
{
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].kind == KIND_TEMPORARY && p->buffers[i].root != i)
            temporaries[p->buffers[i].root].shared = true;
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        for (uint32_t n = 0; n < in->input_count; n++)
            if (in->inputs[n] != DVT_NONE)
                use_buffer(p, in, i, in->inputs[n], false, states, temporaries);
        for (uint32_t n = 0; n < in->output_count; n++)
            if (in->outputs[n] != DVT_NONE)
                use_buffer(p, in, i, in->outputs[n], true, states, temporaries);
    }
}

/* A whole temporary that is not placed yet. */
static bool may_place(const program *p, const temporary_use *temporaries, uint32_t buffer)
{
    const buffer_record *b = &p->buffers[buffer];
    return b->kind == KIND_TEMPORARY && b->root == buffer && !b->is_placed &&
           !temporaries[buffer].shared;
}

static resident plan_one(program *p, uint32_t state, const state_use *use,
                         const temporary_use *temporaries)
{
    resident made = {state, use->device, DVT_NONE, DVT_NONE};
    bool reads_first = use->reads == 0 || use->writes == 0 || use->last_read < use->write_at;
    /* The new value takes the old one's place: nothing changes it afterwards, and nobody reads
     * the state once it is written. */
    if (use->writes == 1 && reads_first && may_place(p, temporaries, use->writer) &&
        temporaries[use->writer].last_write < use->write_at) {
        made.writer = use->writer;
        p->buffers[made.writer].is_placed = true;
    }
    /* A copy that nobody writes to is the state itself, as long as that stays what it is. */
    bool stays = use->writes == 0 || made.writer != DVT_NONE ||
                 (use->reads > 0 && use->writes == 1 &&
                  temporaries[p->buffers[use->reader].root].last_touch < use->write_at);
    if (use->reads == 1 && stays && may_place(p, temporaries, use->reader) &&
        temporaries[use->reader].writes == 1) {
        made.reader = use->reader;
        p->buffers[made.reader].is_placed = true;
    }
    return made;
}

static dvt_status plan(dvt_artifact *a, state_use *states, temporary_use *temporaries,
                       dvt_error *error)
{
    program *p = &a->program;
    look(p, states, temporaries);
    a->residents = calloc(a->state_count, sizeof *a->residents);
    if (a->residents == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        bool stays = p->buffers[i].kind == KIND_STATE && states[i].device != DVT_NONE &&
                     states[i].device != 0 && is_fixed(a, &p->buffers[i]);
        if (!stays)
            continue;
        a->residents[a->resident_count++] = plan_one(p, i, &states[i], temporaries);
        p->buffers[i].resident = a->resident_count;
    }
    return DVT_OK;
}

dvt_status dvt_residents_plan(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    if (a->state_count == 0 || p->device_count == 0)
        return DVT_OK;
    state_use *states = calloc(p->buffer_count + 1u, sizeof *states);
    temporary_use *temporaries = calloc(p->buffer_count + 1u, sizeof *temporaries);
    dvt_status status = states != NULL && temporaries != NULL
                            ? plan(a, states, temporaries, error)
                            : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    free(states);
    free(temporaries);
    return status;
}

/* ---- the memory of one state ---- */

static plugin *plugin_for(const dvt_artifact *a, uint32_t index)
{
    return a->devices[a->residents[index].device - 1].plugin;
}

static state_memory *memory_of(const dvt_state *state, uint32_t buffer)
{
    uint32_t number = state->artifact->program.buffers[buffer].resident;
    return number != 0 && state->held != NULL ? &state->held[number - 1] : NULL;
}

static uint64_t next_number(void)
{
    static _Atomic(uint64_t) last;
    return atomic_fetch_add(&last, 1) + 1;
}

dvt_status dvt_device_state_new(dvt_state *state, dvt_error *error)
{
    uint32_t count = state->artifact->resident_count;
    if (count == 0 || state->held != NULL)
        return DVT_OK;
    state->placement = next_number();
    state->held = calloc(count, sizeof *state->held);
    return state->held != NULL ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
}

void dvt_device_state_free(dvt_state *state)
{
    const dvt_artifact *a = state->artifact;
    for (uint32_t i = 0; state->held != NULL && i < a->resident_count; i++) {
        plugin *p = plugin_for(a, i);
        dvt_lock_take(&p->lock);
        plugin_free(p, &state->held[i].now);
        plugin_free(p, &state->held[i].next);
        plugin_sweep(p);
        dvt_lock_give(&p->lock);
    }
    free(state->held);
    state->held = NULL;
}

static int is_lost(plugin *p, plugin_error *error)
{
    return plugin_problem_is(error, PLUGIN_LOST,
                             "state that stayed on the device of plug-in '%s' is lost: the "
                             "device was, or what computed it failed; reset it, or write it",
                             p->info.name);
}

static int fetch(plugin *p, state_memory *held, void *to, uint64_t bytes, plugin_error *error)
{
    plugin_buffer *source = &held->now;
    plugin_lane *lane;
    if (plugin_enter(p, &source, 1, &lane, error) != 0)
        return -1;
    int failed = plugin_is_alive(p, source) ? 0 : is_lost(p, error);
    if (!failed)
        failed = plugin_download(lane, to, source, 0, bytes, error);
    plugin_error unread;
    if (p->device != NULL && !p->lost && plugin_sync(lane, failed ? &unread : error) != 0)
        failed = -1;
    plugin_leave(lane);
    return failed;
}

dvt_status dvt_device_state_fetch(dvt_state *state, uint32_t buffer, dvt_error *error)
{
    state_memory *held = memory_of(state, buffer);
    plugin_error problem = {0};
    if (held == NULL || !held->is_newer)
        return DVT_OK;
    const dvt_artifact *a = state->artifact;
    plugin *p = plugin_for(a, a->program.buffers[buffer].resident - 1);
    if (fetch(p, held, state->data[buffer], a->program.buffers[buffer].data_size, &problem) !=
        0)
        return dvt_plugin_failed(&problem, error);
    held->is_newer = false;
    return DVT_OK;
}

void dvt_device_state_written(dvt_state *state, uint32_t buffer)
{
    state_memory *held = memory_of(state, buffer);
    if (held != NULL)
        held->is_sent = held->is_newer = false;
}

/* ---- a run ---- */

static int see_to_memory(plugin *p, plugin_buffer *memory, uint64_t bytes, plugin_error *error)
{
    if (memory->memory != NULL && memory->generation == p->generation)
        return 0;
    return plugin_alloc(p, bytes, memory, error);
}

/* What the device has to have before the first instruction. */
static int send(const dvt_artifact *a, uint32_t index, dvt_state *state, plugin_lane *lane,
                bool *sent, plugin_error *error)
{
    const resident *r = &a->residents[index];
    plugin *p = lane->plugin;
    state_memory *held = &state->held[index];
    uint64_t bytes = a->program.buffers[r->state].data_size;
    bool alive = held->now.memory != NULL && plugin_is_alive(p, &held->now);
    if (held->is_newer && !alive)
        return is_lost(p, error);
    if (r->writer != DVT_NONE && see_to_memory(p, &held->next, bytes, error) != 0)
        return -1;
    if (held->is_sent && alive)
        return 0;
    held->is_sent = held->is_newer = false;
    if (see_to_memory(p, &held->now, bytes, error) != 0)
        return -1;
    *sent = held->is_arriving = true;
    held->now.lane = -1;
    return plugin_upload(lane, &held->now, 0, state->data[r->state], bytes, error);
}

static void place(frame *f, uint32_t root, const plugin_buffer *memory)
{
    const program *p = &f->devices->artifact->program;
    if (root == DVT_NONE)
        return;
    dvt_device_point(f, root, memory);
    for (uint32_t i = p->buffers[root].first_view; i != DVT_NONE; i = p->buffers[i].next_view)
        dvt_device_point(f, i, memory);
}

int dvt_device_state_bind(frame *f, dvt_state *state, uint32_t device, plugin_lane *lane,
                          bool *sent, plugin_error *error)
{
    const dvt_artifact *a = f->devices->artifact;
    device_arena *arena = &f->devices->arenas[device - 1];
    for (uint32_t i = 0; i < a->resident_count; i++)
        if (a->residents[i].device == device && send(a, i, state, lane, sent, error) != 0)
            return -1;
    if (*sent)
        state->placement = next_number();
    if (arena->placement == state->placement)
        return 0;
    for (uint32_t i = 0; i < a->resident_count; i++)
        if (a->residents[i].device == device) {
            place(f, a->residents[i].reader, &state->held[i].now);
            place(f, a->residents[i].writer, &state->held[i].next);
        }
    dvt_device_place_launches(f, device);
    arena->placement = state->placement;
    return 0;
}

int dvt_device_state_copy(frame *f, const instruction *in, dvt_state *state, plugin_lane *lane,
                          bool *handled, plugin_error *error)
{
    const dvt_artifact *a = f->devices->artifact;
    uint32_t to = in->outputs[0], from = in->inputs[0];
    bool writes = a->program.buffers[to].resident != 0;
    uint32_t number = a->program.buffers[writes ? to : from].resident;
    *handled = number != 0;
    if (number == 0)
        return 0;
    const resident *r = &a->residents[number - 1];
    state_memory *held = &state->held[number - 1];
    plugin_buffer other = {.memory = f->tensors[writes ? from : to].data};
    uint64_t offset = f->tensors[writes ? from : to].byte_offset, bytes = f->extents[to];
    if (writes && r->writer != DVT_NONE) {
        held->is_replaced = true;
        return 0;
    }
    if (!writes)
        return r->reader != DVT_NONE
                   ? 0
                   : plugin_move(lane, &other, offset, &held->now, 0, bytes, error);
    held->is_newer = true;
    return plugin_move(lane, &held->now, 0, &other, offset, bytes, error);
}

/* The turn has ended: what was sent is there, or must be sent again. */
void dvt_device_state_arrived(const dvt_artifact *a, dvt_state *state, uint32_t device,
                              bool arrived)
{
    for (uint32_t i = 0; state != NULL && i < a->resident_count; i++) {
        state_memory *held = &state->held[i];
        if (a->residents[i].device != device || !held->is_arriving)
            continue;
        held->is_arriving = false;
        held->is_sent = arrived;
    }
}

void dvt_device_state_commit(const dvt_artifact *a, dvt_state *state, const plugin_lane *lane,
                             bool succeeded)
{
    bool any = false;
    for (uint32_t i = 0; i < a->resident_count; i++) {
        state_memory *held = &state->held[i];
        if (held->is_replaced && succeeded) {
            plugin_buffer old = held->now;
            held->now = held->next;
            held->now.lane = -1; /* it was waited for, unless a lane is named below */
            held->next = old;
            held->is_newer = held->is_sent = any = true;
        }
        if (lane != NULL && a->devices[a->residents[i].device - 1].plugin == lane->plugin)
            plugin_computed_on(&held->now, lane);
        held->is_replaced = false;
    }
    if (any)
        state->placement = next_number();
}
