/* Launches of a device that follow each other, recorded once and replayed. Sizes are the
 * frame's; addresses are its arena's, the weights', and those of state and of callers' tensors,
 * which may be others in the next call. */
#include "device_state.h"
#include "stream.h"

static int run_blob(frame *f, const launch *l, plugin_lane *lane, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said = {.struct_size = sizeof said};
    dvp_program *compiled =
        f->devices->artifact->devices[l->in->device - 1].programs[l->in->index];
    plugin_counted(&p->counters.kernels, 1);
    dvp_status status =
        p->api.program_run(p->device, lane->compute, compiled, l->op.inputs, l->op.input_count,
                           l->op.outputs, l->op.output_count, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, l->op.name, &said, error);
}

/* Instructions [at, end) of a frame. */
typedef struct {
    frame *f;
    plugin_lane *lane;
    uint32_t at, end;
} stretch;

static const instruction *instruction_of(const stretch *s, uint32_t i)
{
    return &s->f->devices->artifact->program.instructions[i];
}

static int give(void *context, plugin_error *error)
{
    const stretch *s = context;
    for (uint32_t i = s->at; i < s->end; i++) {
        const instruction *in = instruction_of(s, i);
        if (in->opcode == OP_COPY)
            continue; /* a free one, which comes when it is its turn */
        const launch *l = &s->f->devices->launches[in->launch_at];
        int failed = l->kernel_name == NULL
                         ? run_blob(s->f, l, s->lane, error)
                         : plugin_execute(s->lane, l->kernel, l->kernel_name, &l->op, error);
        if (failed)
            return -1;
    }
    return 0;
}

/* As far as launches follow each other, and copies that are none; how many launches. */
static uint32_t extend(stretch *s)
{
    const frame *f = s->f;
    uint32_t count = f->devices->artifact->program.instruction_count, launches = 0;
    uint32_t device = instruction_of(s, s->at)->device;
    uint32_t cleared =
        f->clearing_next < f->clearing_count ? f->clearings[f->clearing_next].at : DVT_NONE;
    for (s->end = s->at; s->end < count && s->end < cleared; s->end++) {
        const instruction *in = instruction_of(s, s->end);
        if (in->device != device || in->release_count > 0 ||
            (in->opcode == OP_COPY && !dvt_device_copy_is_free(f, in)))
            break;
        launches += in->opcode != OP_COPY;
    }
    return launches;
}

/* What tells this call's launches from another's. */
static size_t write_key(const stretch *s, uint64_t *key)
{
    size_t count = 0;
    key[count++] = s->end;
    for (uint32_t i = s->at; i < s->end; i++) {
        const instruction *in = instruction_of(s, i);
        const dvp_tensor *t = s->f->devices->tensors + in->pointers_at;
        for (uint32_t n = 0; in->opcode != OP_COPY && n < in->output_count + in->input_count;
             n++) {
            uint32_t buffer =
                n < in->output_count ? in->outputs[n] : in->inputs[n - in->output_count];
            key[count++] = (uint64_t)(uintptr_t)t[n].data;
            key[count++] = t[n].byte_offset;
            key[count++] = buffer == DVT_NONE ? 0 : s->f->devices->identities[buffer];
        }
    }
    return count;
}

int dvt_device_launch(frame *f, uint32_t at, const instruction *in, device_turn *turn,
                      plugin_error *error)
{
    struct device_frame *d = f->devices;
    stretch s = {f, turn->lane, at, at + 1};
    if (at < turn->replayed_to)
        return 0;
    if (turn->uploads && plugin_await_uploads(turn->lane, error) != 0)
        return -1;
    turn->uploads = false;
    turn->launches = true;
    if (turn->lane->plugin->api.capture_begin == NULL || in->release_count > 0 ||
        extend(&s) < 2) {
        s.end = at + 1;
        return give(&s, error);
    }
    turn->replayed_to = s.end;
    size_t count = write_key(&s, d->key);
    return plugin_replay(turn->lane, &d->graphs[at], d->key, count, give, &s, error);
}
