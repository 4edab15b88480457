/* Inputs and results on a device that kernels use where they lie. A program copies an input to
 * a temporary on the device, and a result from one; where nobody can tell the difference the
 * temporary is the caller's memory itself, in the calls that give some, and nothing is copied.
 */
#include "device_state.h"
#include "stream.h"

#include <stdlib.h>

/* ---- which can be, worked out when an artifact is opened ---- */

/* What is known of a temporary, by its root. */
typedef struct {
    uint32_t writes, last_write;
    bool shared, is_taken;
} temporary_use;

/* The one copy between the host's side of a tensor and a temporary. */
typedef struct {
    uint32_t copies, at, other;
} tensor_copy;

static void look(const program *p, temporary_use *temporaries, tensor_copy *copies)
{
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].kind == KIND_TEMPORARY && p->buffers[i].root != i)
            temporaries[p->buffers[i].root].shared = true;
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        for (uint32_t n = 0; n < in->output_count; n++) {
            if (in->outputs[n] == DVT_NONE)
                continue;
            temporaries[p->buffers[in->outputs[n]].root].writes++;
            temporaries[p->buffers[in->outputs[n]].root].last_write = i;
        }
        if (in->opcode != OP_COPY || in->device == 0)
            continue;
        uint32_t to = in->outputs[0], from = in->inputs[0];
        uint32_t host = p->buffers[to].device == 0 ? to : from;
        copies[host].copies++;
        copies[host].at = i;
        copies[host].other = host == to ? from : to;
    }
}

static uint32_t take(const program *p, temporary_use *temporaries, const tensor_copy *copy,
                     bool is_input)
{
    const buffer_record *b = &p->buffers[copy->other];
    temporary_use *use = &temporaries[copy->other];
    bool whole = b->kind == KIND_TEMPORARY && b->root == copy->other && !b->is_placed;
    bool stays = is_input ? use->writes == 1 : use->last_write < copy->at;
    if (copy->copies != 1 || !whole || use->shared || use->is_taken || !stays)
        return DVT_NONE;
    use->is_taken = true;
    return copy->other;
}

static bool may_lie_there(const dvt_artifact *a, uint32_t buffer)
{
    return a->tensor_devices[buffer] != 0 && a->tensor_devices[buffer] != DVT_NONE;
}

static void plan(dvt_artifact *a, temporary_use *temporaries, tensor_copy *copies)
{
    const program *p = &a->program;
    look(p, temporaries, copies);
    for (uint32_t i = 0; i < p->input_count; i++)
        a->shown[i] = may_lie_there(a, p->inputs[i])
                          ? take(p, temporaries, &copies[p->inputs[i]], true)
                          : DVT_NONE;
    for (uint32_t i = 0; i < p->output_count; i++)
        a->shown[p->input_count + i] = may_lie_there(a, p->outputs[i])
                                           ? take(p, temporaries, &copies[p->outputs[i]], false)
                                           : DVT_NONE;
}

dvt_status dvt_device_shown_plan(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    if (p->device_count == 0)
        return DVT_OK;
    temporary_use *temporaries = calloc(p->buffer_count + 1u, sizeof *temporaries);
    tensor_copy *copies = calloc(p->buffer_count + 1u, sizeof *copies);
    a->shown = calloc(p->input_count + p->output_count + 1u, sizeof *a->shown);
    bool there = temporaries != NULL && copies != NULL && a->shown != NULL;
    if (there)
        plan(a, temporaries, copies);
    free(temporaries);
    free(copies);
    return there ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
}

/* ---- in a run ---- */

void dvt_device_shown_start(frame *f)
{
    const dvt_artifact *a = f->devices->artifact;
    const program *p = &a->program;
    for (uint32_t i = 0; i < p->input_count + p->output_count; i++)
        if (a->shown[i] != DVT_NONE)
            f->devices->shown[i].arena_offset = f->tensors[a->shown[i]].byte_offset;
}

static void place(frame *f, uint32_t root, const plugin_buffer *memory, uint64_t offset)
{
    const program *p = &f->devices->artifact->program;
    dvt_device_point(f, root, memory);
    f->tensors[root].byte_offset = offset + f->offsets[root];
    for (uint32_t i = p->buffers[root].first_view; i != DVT_NONE; i = p->buffers[i].next_view) {
        dvt_device_point(f, i, memory);
        f->tensors[i].byte_offset = offset + f->offsets[i];
    }
}

/* Whether kernels use such memory: what is pinned or imported is for copies alone. */
static bool is_for_kernels(const struct dvt_buffer *buffer)
{
    return buffer->kind != DVT_MEMORY_PINNED && buffer->kind != DVT_MEMORY_IMPORTED;
}

/* The memory of a caller's, if it is as well aligned as the arena is. */
static bool show(frame *f, uint32_t n, device_tensor *given, const plugin_buffer *arena)
{
    uint32_t root = f->devices->artifact->shown[n];
    shown_place *now = &f->devices->shown[n];
    given->in_place = given->buffer != NULL && is_for_kernels(given->buffer) &&
                      given->offset % DVT_ALIGN == 0;
    const plugin_buffer *there = given->in_place ? &given->buffer->memory : NULL;
    shown_place next = {now->arena_offset, 0, NULL, 0};
    if (there != NULL)
        next = (shown_place){now->arena_offset, given->offset, there->memory,
                             plugin_identity(there)};
    if (next.memory == now->memory && next.offset == now->offset &&
        next.identity == now->identity)
        return false;
    place(f, root, there != NULL ? there : arena,
          there != NULL ? next.offset : next.arena_offset);
    *now = next;
    return true;
}

bool dvt_device_show(frame *f, uint32_t device, bool fresh)
{
    const dvt_artifact *a = f->devices->artifact;
    const program *p = &a->program;
    const plugin_buffer *arena = &f->devices->arenas[device - 1].memory;
    bool moved = false;
    for (uint32_t i = 0; i < p->input_count + p->output_count; i++) {
        uint32_t root = a->shown[i];
        if (root == DVT_NONE || p->buffers[root].device != device)
            continue;
        if (fresh && f->devices->shown[i].memory != NULL) { /* the arena is a new one */
            place(f, root, arena, f->devices->shown[i].arena_offset);
            f->devices->shown[i] =
                (shown_place){.arena_offset = f->devices->shown[i].arena_offset};
            moved = true;
        }
        device_tensor *given = i < p->input_count ? &f->devices->inputs[i]
                                                  : &f->devices->outputs[i - p->input_count];
        moved = show(f, i, given, arena) || moved;
    }
    return moved;
}
