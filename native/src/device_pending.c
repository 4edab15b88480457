/* Memory of the host's that a device still reads or writes while the host goes on: an
 * instruction of the host's waits for what it has to do with, and for nothing else. */
#include "device_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- copies behind which an event is of use, worked out when an artifact is opened ---- */

static bool touches(const program *p, const instruction *in, uint32_t root)
{
    for (uint32_t n = 0; n < in->input_count; n++)
        if (in->inputs[n] != DVT_NONE && p->buffers[in->inputs[n]].root == root)
            return true;
    for (uint32_t n = 0; n < in->output_count; n++)
        if (in->outputs[n] != DVT_NONE && p->buffers[in->outputs[n]].root == root)
            return true;
    return false;
}

/* Whether the device is given more before the host comes to what a copy brings. */
static bool is_overtaken(const program *p, uint32_t at)
{
    const instruction *copy = &p->instructions[at];
    uint32_t root = p->buffers[copy->outputs[0]].root;
    bool more = false;
    for (uint32_t i = at + 1; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        if (in->device == 0 && touches(p, in, root))
            return more;
        more = more || in->device == copy->device;
    }
    return false;
}

dvt_status dvt_device_marks_plan(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    if (p->device_count == 0)
        return DVT_OK;
    a->marked = calloc(p->instruction_count + 1u, 1);
    if (a->marked == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        a->marked[i] = in->opcode == OP_COPY && in->device != 0 &&
                       p->buffers[in->outputs[0]].device == 0 && is_overtaken(p, i);
    }
    return DVT_OK;
}

/* ---- what a turn is at work on ---- */

static pending_range range_of(const frame *f, uint32_t buffer, bool written)
{
    uint32_t owner = f->devices->artifact->program.buffers[buffer].owner;
    uintptr_t low = (uintptr_t)f->tensors[owner].data;
    return (pending_range){low, low + (uintptr_t)f->extents[owner], written, -1};
}

void dvt_device_note_pending(const frame *f, uint32_t at, const instruction *in,
                             device_turn *turn)
{
    bool fills = f->devices->artifact->program.buffers[in->outputs[0]].device == 0;
    if (turn->pending_count < MOST_PENDING) {
        pending_range *made = &turn->pending[turn->pending_count];
        *made = range_of(f, fills ? in->outputs[0] : in->inputs[0], fills);
        if (fills && f->devices->artifact->marked[at] &&
            plugin_mark(turn->lane, turn->mark_count) == 0)
            made->mark = turn->mark_count++;
    }
    if (turn->pending_count <= MOST_PENDING)
        turn->pending_count++;
}

/* What stands in the way of an instruction: the last copy from the device, whether there are
 * copies to it, and whether that is all that can be told. */
typedef struct {
    int32_t last_written;
    bool is_read, is_unknown;
} obstacle;

static void meet(const device_turn *turn, pending_range used, obstacle *found)
{
    for (uint32_t i = 0; i < turn->pending_count && i < MOST_PENDING; i++) {
        const pending_range *p = &turn->pending[i];
        if (used.low >= p->high || p->low >= used.high || !(p->written || used.written))
            continue;
        if (p->written)
            found->last_written = (int32_t)i;
        else
            found->is_read = true;
    }
}

/* Whether a host call may write to what it is given: PyTorch's own operators say so by their
 * names, and nothing is known of others. */
static bool may_write(const program *p, const instruction *in)
{
    if (in->opcode == OP_BLOB)
        return true;
    const char *op = p->host_calls[in->index].op;
    size_t length = p->host_calls[in->index].op_length;
    if (length < 5 || memcmp(op, "aten.", 5) != 0)
        return true;
    const char *dot = memchr(op + 5, '.', length - 5);
    size_t end = dot != NULL ? (size_t)(dot - op) : length;
    bool out = length - end >= 4 &&
               (memcmp(op + end, ".out", 4) == 0 || memcmp(op + length - 4, "_out", 4) == 0);
    return op[end - 1] == '_' || out;
}

static obstacle obstacle_of(const frame *f, const device_turn *turn, const instruction *in)
{
    const program *p = &f->devices->artifact->program;
    obstacle found = {-1, false, turn->pending_count > MOST_PENDING};
    bool own = in->opcode == OP_KERNEL || in->opcode == OP_COPY;
    bool writes = !own && may_write(p, in);
    for (uint32_t i = 0; i < in->input_count; i++)
        if (in->inputs[i] != DVT_NONE)
            meet(turn, range_of(f, in->inputs[i], writes), &found);
    for (uint32_t i = 0; i < in->output_count; i++) {
        bool has_memory = own || (i < 32 && (in->into >> i & 1u));
        if (in->outputs[i] != DVT_NONE && has_memory)
            meet(turn, range_of(f, in->outputs[i], true), &found);
    }
    return found;
}

/* Takes what is done off the list: copies of one direction, up to a place. */
static void forget(device_turn *turn, bool written, uint32_t upto)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < turn->pending_count; i++)
        if (turn->pending[i].written != written || i > upto)
            turn->pending[kept++] = turn->pending[i];
    turn->pending_count = kept;
}

/* The first event at or behind a copy; -1: there is none. */
static int32_t mark_behind(const device_turn *turn, int32_t at)
{
    for (uint32_t i = (uint32_t)at; i < turn->pending_count; i++)
        if (turn->pending[i].mark >= 0)
            return (int32_t)i;
    return -1;
}

static dvt_status overcome(frame *f, device_turn *turn, const obstacle *found, dvt_error *error)
{
    plugin_error problem = {0};
    if (found->is_unknown)
        return dvt_device_leave(f, turn, DVT_OK, error);
    if (found->last_written >= 0) {
        int32_t at = mark_behind(turn, found->last_written);
        /* An error of that work is the stream's to tell. */
        if (at < 0 || plugin_wait_mark(turn->lane, turn->pending[at].mark) != 0)
            return dvt_device_leave(f, turn, DVT_OK, error);
        forget(turn, true, (uint32_t)at);
    }
    if (!found->is_read)
        return DVT_OK;
    if (plugin_sync_uploads(turn->lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    forget(turn, false, MOST_PENDING);
    return DVT_OK;
}

dvt_status dvt_device_await(frame *f, device_turn *turn, const instruction *in,
                            dvt_error *error)
{
    /* The device is the run's alone, and a host call may run something on it. */
    bool own = in->opcode == OP_KERNEL || in->opcode == OP_COPY;
    if (!own && !turn->plugin->parallel)
        return dvt_device_leave(f, turn, DVT_OK, error);
    obstacle found = obstacle_of(f, turn, in);
    bool none = found.last_written < 0 && !found.is_read && !found.is_unknown;
    return none ? DVT_OK : overcome(f, turn, &found, error);
}

dvt_status dvt_device_await_releases(frame *f, device_turn *turn, const instruction *in,
                                     dvt_error *error)
{
    const program *p = &f->devices->artifact->program;
    obstacle found = {-1, false, turn->pending_count > MOST_PENDING};
    for (uint32_t n = 0; n < in->release_count; n++)
        meet(turn, range_of(f, p->releases[in->release_at + n], true), &found);
    bool none = found.last_written < 0 && !found.is_read && !found.is_unknown;
    return none ? DVT_OK : overcome(f, turn, &found, error);
}
