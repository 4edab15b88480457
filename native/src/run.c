/* One call: check the inputs, find or make a frame for their sizes, run the instructions. */
#include "call.h"
#include "source.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FRAMES  16
#define MAX_SYMBOLS 64
#define ASK_EVERY   16 /* instructions between two questions whether to stop */

/* ---- frames ---- */

static dvt_status take_frame(dvt_artifact *a, const int64_t *symbols, const dvt_stream *stream,
                             frame **found, dvt_error *error)
{
    size_t bytes = a->program.symbol_count * sizeof *symbols;
    const plugin_lane *lane = stream != NULL ? stream->lane : NULL;
    *found = NULL;
    dvt_lock_take(&a->lock);
    for (frame **at = &a->frames; *at != NULL; at = &(*at)->next)
        if ((bytes == 0 || memcmp((*at)->symbols, symbols, bytes) == 0) &&
            dvt_device_is_free(*at, lane)) {
            *found = *at;
            *at = (*found)->next;
            a->frame_count--;
            a->kept_bytes -= (*found)->bytes;
            break;
        }
    dvt_lock_give(&a->lock);
    return *found != NULL ? DVT_OK : dvt_frame_new(a, symbols, found, error);
}

/* Takes the oldest of the frames that are kept; the lock is held. */
static frame *take_oldest(dvt_artifact *a)
{
    frame **at = &a->frames;
    while ((*at)->next != NULL)
        at = &(*at)->next;
    frame *oldest = *at;
    *at = NULL;
    a->frame_count--;
    a->kept_bytes -= oldest->bytes;
    return oldest;
}

/* ... and as many of the others as there is room for. */
void dvt_frame_give(dvt_artifact *a, frame *f)
{
    frame *dropped = NULL;
    dvt_lock_take(&a->lock);
    a->memory = f->memory;
    a->cleared = f->cleared;
    a->padding = f->padding;
    f->next = a->frames;
    a->frames = f;
    a->frame_count++;
    a->kept_bytes += f->bytes;
    while (a->frame_count > MAX_FRAMES ||
           (a->frame_count > 1 && a->kept_bytes > a->max_memory)) {
        frame *oldest = take_oldest(a);
        oldest->next = dropped;
        dropped = oldest;
    }
    dvt_lock_give(&a->lock);
    while (dropped != NULL) {
        frame *next = dropped->next;
        dvt_frame_free(dropped);
        dropped = next;
    }
}

/* ---- instructions ---- */

static bool same_layout(const dvt_tensor *got, const dvt_tensor *expected)
{
    if (!dvt_same_dtype(got->dtype, expected->dtype) || got->ndim != expected->ndim ||
        got->device.type != DVT_CPU)
        return false;
    for (int32_t i = 0; i < got->ndim; i++)
        if (got->shape[i] != expected->shape[i])
            return false;
    return dvt_is_empty(expected) || (got->data != NULL && dvt_fits_in_place(got, expected, 1));
}

/* What a host call is called: an operator, or the backend whose blob it runs. */
static span host_name(const program *p, const instruction *in)
{
    if (in->opcode == OP_BLOB)
        return dvt_blob_owner(p, in->index);
    return (span){(const uint8_t *)p->host_calls[in->index].op,
                  p->host_calls[in->index].op_length};
}

static void delete_managed(dvt_managed *managed)
{
    if (managed != NULL && managed->deleter != NULL)
        managed->deleter(managed);
}

static dvt_status not_as_promised(const program *p, const instruction *in, dvt_error *error)
{
    span name = host_name(p, in);
    return dvt_fail(error, DVT_ERROR_HOST,
                    "%.*s gave a result of another shape, layout or dtype than promised",
                    dvt_shown(name.size), (const char *)name.data);
}

/* A result that the host did not write where it belongs: copied there. */
static dvt_status store_result(const program *p, const instruction *in, dvt_managed *made,
                               const dvt_tensor *to, dvt_error *error)
{
    const dvt_tensor *from = &made->tensor;
    bool fits = dvt_same_dtype(from->dtype, to->dtype) && from->ndim == to->ndim &&
                from->device.type == DVT_CPU && (dvt_is_empty(to) || from->data != NULL);
    for (int32_t i = 0; fits && i < to->ndim; i++)
        fits = from->shape[i] == to->shape[i];
    if (fits && !dvt_is_empty(to))
        dvt_repack(to, from);
    delete_managed(made);
    return fits ? DVT_OK : not_as_promised(p, in, error);
}

/* A result with gaps as a copy that has nothing between its elements: what lies there is the
 * host's. */
static dvt_managed *hide_gaps(const dvt_artifact *a, const frame *f, uint32_t buffer,
                              dvt_managed *made)
{
    dvt_managed *copy = dvt_new_output(&a->allocator, &f->tensors[buffer], f->extents[buffer]);
    if (copy != NULL) {
        memset(copy->tensor.data, 0, (size_t)f->extents[buffer]);
        dvt_repack(&copy->tensor, &made->tensor);
    }
    delete_managed(made);
    return copy;
}

static dvt_status keep_result(const dvt_artifact *a, frame *f, const instruction *in,
                              uint32_t number, dvt_managed *made, dvt_error *error)
{
    const program *p = &a->program;
    uint32_t buffer = in->outputs[number];
    if (buffer == DVT_NONE) {
        delete_managed(made);
        return DVT_OK;
    }
    if (number < 32 && (in->into >> number & 1u))
        return made != NULL ? store_result(p, in, made, &f->tensors[buffer], error) : DVT_OK;
    if (made == NULL)
        return dvt_fail(error, DVT_ERROR_HOST, "a host operation gave no result %u", number);
    f->held[buffer] = made;
    if (!same_layout(&made->tensor, &f->tensors[buffer]))
        return not_as_promised(p, in, error);
    if (f->gaps[buffer] && !a->trusted) {
        f->held[buffer] = made = hide_gaps(a, f, buffer, made);
        if (made == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    }
    f->tensors[buffer].data = dvt_data(&made->tensor);
    dvt_bind_views(p, f, buffer);
    return DVT_OK;
}

static dvt_status run_host(const dvt_artifact *a, frame *f, uint32_t index,
                           const dvt_run_options *options, dvt_error *error)
{
    const program *p = &a->program;
    const instruction *in = &p->instructions[index];
    const dvt_call *call = &f->calls[index];
    dvt_managed *few[8] = {NULL};
    dvt_managed **made =
        in->output_count <= 8 ? few : calloc(in->output_count, sizeof(dvt_managed *));
    if (made == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    dvt_host_operation operation = {
        .struct_size = sizeof operation,
        .call = in->index + (in->opcode == OP_BLOB ? p->host_call_count : 0),
        .input_count = in->input_count,
        .attribute_count = in->attribute_count,
        .output_count = in->output_count,
        .into = in->into,
        .inputs = call->inputs,
        .buffers = in->inputs,
        .held = f->held,
        .attributes = call->attributes,
        .outputs = call->outputs,
        .made = made,
        .kept = &f->kept[index],
    };
    dvt_status status = options->host(options->host_context, &operation, error);
    for (uint32_t i = 0; i < in->output_count; i++) {
        dvt_status kept = status == DVT_OK ? keep_result(a, f, in, i, made[i], error) : DVT_OK;
        if (status == DVT_OK)
            status = kept;
        else
            delete_managed(made[i]);
    }
    if (made != few)
        free(made);
    return status;
}

static void release_host(frame *f, uint32_t buffer)
{
    dvt_managed *held = f->held[buffer];
    f->held[buffer] = NULL;
    delete_managed(held);
}

/* A run, at one of its instructions. */
typedef struct {
    const dvt_artifact *artifact;
    frame *f;
    const dvt_run_options *options;
    dvt_error *error;
    run_control *control;
    device_turn turn;
    uint32_t at, end; /* the next instruction, and the first that is for later */
    uint32_t stretch; /* the next of the frame's */
    dvt_status status;
} progress;

static void run_instruction(progress *r, uint32_t i)
{
    const program *p = &r->artifact->program;
    const instruction *in = &p->instructions[i];
    const dvt_run_options *options = r->options;
    frame *f = r->f;
    bool is_timed = r->artifact->times != NULL;
    uint64_t start = is_timed ? dvt_now() : 0, shared = dvt_jobs_shared();
    if (options->trace != NULL)
        options->trace(options->trace_context, i, 1);
    if (in->device == 0 && f->clearing_next < f->clearing_count)
        dvt_frame_clear(f, i);
    if (in->device != 0)
        r->status = dvt_device_step(f, i, in, &r->turn, r->error);
    else if (dvt_is_own(in))
        r->status = dvt_run_own(p, f, i, r->error);
    else
        r->status = run_host(r->artifact, f, i, options, r->error);
    f->is_shared[i] = dvt_is_own(in) && dvt_jobs_shared() != shared;
    if (is_timed && r->status == DVT_OK)
        dvt_note_time(r->artifact, i, start, dvt_now());
    if (options->trace != NULL && r->status == DVT_OK)
        options->trace(options->trace_context, i, 0);
}

/* The stretch of strands that begins at the next instruction, where this run may do it by
 * strands: who traces it is told of one instruction after the other. */
static const strand_stretch *stretch_here(progress *r)
{
    const frame *f = r->f;
    while (r->stretch < f->stretch_count && f->stretches[r->stretch].begin < r->at)
        r->stretch++;
    if (r->stretch == f->stretch_count || f->stretches[r->stretch].begin != r->at)
        return NULL;
    bool may = r->options->trace == NULL && (uint32_t)dvt_threads() == f->strand_threads;
    return may ? &f->stretches[r->stretch] : NULL;
}

static void run_stretch(progress *r, const strand_stretch *s)
{
    uint64_t shared = dvt_jobs_shared();
    r->status = dvt_strands_run(r->artifact, r->f, s, r->control, r->error);
    memset(r->f->is_shared + s->begin, 0, s->end - s->begin);
    r->f->is_shared[s->begin] = dvt_jobs_shared() != shared;
    r->at = s->end - 1;
}

/* Instructions up to r->end, unless one fails or the run is stopped. */
static void run_some(void *context)
{
    progress *r = context;
    const program *p = &r->artifact->program;
    for (; r->status == DVT_OK && r->at < r->end; r->at++) {
        const instruction *in = &p->instructions[r->at];
        bool asks = r->at % ASK_EVERY == ASK_EVERY - 1;
        if (r->control != NULL &&
            (asks ? dvt_control_poll(r->control) : dvt_control_stopped(r->control)))
            return;
        if (r->turn.plugin != NULL && in->device == 0)
            r->status = dvt_device_await(r->f, &r->turn, in, r->error);
        if (r->status != DVT_OK)
            return;
        const strand_stretch *here = stretch_here(r);
        if (here != NULL) {
            run_stretch(r, here);
            continue;
        }
        run_instruction(r, r->at);
        if (r->status == DVT_OK && r->turn.plugin != NULL && in->release_count > 0)
            r->status = dvt_device_await_releases(r->f, &r->turn, in, r->error);
        for (uint32_t n = 0; n < in->release_count; n++)
            release_host(r->f, p->releases[in->release_at + n]);
    }
}

/* Where to stop next: in front of the next instruction that threads share, or behind the last
 * of them before somebody else's code, which may have threads of its own. */
static uint32_t next_stop(const program *p, const frame *f, uint32_t at)
{
    uint32_t end = at + 1;
    if (!f->is_shared[at]) {
        while (end < p->instruction_count && !f->is_shared[end])
            end++;
        return end;
    }
    for (uint32_t n = end; n < p->instruction_count && dvt_is_own(&p->instructions[n]); n++)
        if (f->is_shared[n])
            end = n + 1;
    return end;
}

static dvt_status run_instructions(const dvt_artifact *a, frame *f,
                                   const dvt_run_options *options, bool waits, dvt_error *error)
{
    uint32_t count = a->program.instruction_count;
    if (error != NULL)
        error->message[0] = 0;
    device_turn turn = {.state = a->state_count > 0 ? options->state : NULL,
                        .stream = options->stream != NULL ? options->stream->lane : NULL,
                        .waits = waits};
    progress r = {a, f, options, error, dvt_control(), turn, 0, 0, 0, DVT_OK};
    dvt_device_start(f);
    f->clearing_next = 0;
    while (r.status == DVT_OK && r.at < count && !dvt_control_stopped(r.control)) {
        uint32_t at = r.at;
        r.end = next_stop(&a->program, f, at);
        if (f->is_shared[at] && r.end > at + 1)
            dvt_in_region(run_some, &r);
        else
            run_some(&r);
    }
    if (dvt_control_stopped(r.control))
        r.status = dvt_fail(error, DVT_ERROR_CANCELLED, "the run was stopped by its caller");
    return dvt_device_end(f, &r.turn, options->done, r.status, error);
}

/* Runs of one state follow each other, and nobody looks at it meanwhile. */
static dvt_status run_with_state(const dvt_artifact *a, frame *f,
                                 const dvt_run_options *options, bool waits, dvt_error *error)
{
    if (a->state_count == 0)
        return run_instructions(a, f, options, waits, error);
    dvt_state *state = options->state;
    dvt_lock_take(&state->lock);
    if (f->state_number != state->number)
        dvt_bind_state(&a->program, f, state);
    dvt_status status = run_instructions(a, f, options, waits, error);
    dvt_lock_give(&state->lock);
    return status;
}

static dvt_status run_frame(dvt_artifact *a, frame *f, const dvt_run_options *options,
                            const dvt_tensor *inputs, dvt_managed **outputs, dvt_error *error)
{
    const program *p = &a->program;
    dvt_status status = dvt_bind_inputs(a, f, inputs, error);
    if (status == DVT_OK)
        status = dvt_make_outputs(a, f, inputs, options->results, outputs, error);
    if (status == DVT_OK)
        status = run_with_state(a, f, options, dvt_outputs_wait(p, options->results, outputs),
                                error);
    if (a->is_mapped)
        status = dvt_source_settle(a->file.source, status, error);
    dvt_return_inputs(a, f, inputs, status == DVT_OK);
    if (status == DVT_OK) {
        dvt_finish_outputs(p, f, options->results, outputs);
        return DVT_OK;
    }
    for (uint32_t i = 0; i < p->buffer_count; i++)
        release_host(f, i);
    dvt_drop_outputs(p, outputs);
    return status;
}

/* What interpreted kernels take; they run one after the other, each in several threads. */
static dvt_status charge_scratch(const dvt_artifact *a, const frame *f, dvt_error *error)
{
    uint64_t total = f->call_bytes + f->bytes, threads = (uint64_t)dvt_threads();
    /* No overflow: a thread holds a strip for each of at most MAX_VALUES values, twice. */
    uint64_t bytes = f->scratch * (f->pieces < threads ? f->pieces : threads);
    return bytes == 0 ? DVT_OK
                      : dvt_charge_memory(a, &total, bytes, "interpreted kernels", error);
}

dvt_status dvt_run_options_read(dvt_run_options *known, const dvt_run_options *given,
                                dvt_error *error)
{
    *known = (dvt_run_options){.struct_size = sizeof *known};
    if (given == NULL)
        return DVT_OK;
    if (given->struct_size < sizeof given->struct_size)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "dvt_run_options: set struct_size");
    memcpy(known, given, /* of an older caller it is shorter: the rest is zero */
           given->struct_size < sizeof *known ? given->struct_size : sizeof *known);
    return DVT_OK;
}

dvt_status dvt_frame_for(dvt_artifact *a, const dvt_tensor *inputs, size_t input_count,
                         const dvt_stream *stream, frame **found, dvt_error *error)
{
    const program *p = &a->program;
    int64_t symbols[MAX_SYMBOLS];
    if (input_count != p->input_count)
        return dvt_fail(error, DVT_ERROR_GUARD, "called with %zu tensors, expected %u",
                        input_count, p->input_count);
    if (a->inspect_only)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "the artifact was opened to be looked at only");
    if (p->symbol_count > MAX_SYMBOLS)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "more than %d dynamic sizes",
                        MAX_SYMBOLS);
    dvt_status status = dvt_check_inputs(a, inputs, error);
    if (status == DVT_OK)
        status = dvt_read_symbols(p, inputs, symbols, error);
    return status == DVT_OK ? take_frame(a, symbols, stream, found, error) : status;
}

static bool uses(const dvt_artifact *a, const plugin *p)
{
    for (uint32_t i = 0; a->devices != NULL && i < a->program.device_count; i++)
        if (a->devices[i].plugin == p)
            return true;
    return false;
}

static dvt_status check_stream(const dvt_artifact *a, const dvt_run_options *options,
                               dvt_error *error)
{
    if ((options->stream != NULL && !uses(a, options->stream->plugin)) ||
        (options->done != NULL && !uses(a, options->done->plugin)))
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "the stream or the event is of a device that the program does not use");
    return DVT_OK;
}

dvt_status dvt_run_controlled(dvt_artifact *a, const dvt_run_options *known,
                              run_control *control, const dvt_tensor *inputs,
                              size_t input_count, dvt_managed **outputs, size_t output_count,
                              dvt_error *error)
{
    const program *p = &a->program;
    frame *f = NULL;
    if (output_count != p->output_count)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "room for %zu outputs, but there are %u",
                        output_count, p->output_count);
    if (known->state != NULL && known->state->artifact != a)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "the state is another artifact's");
    if (p->host_call_count + p->host_blob_count > 0 && known->host == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "the program calls host operations");
    int before = dvt_ask_threads((int)known->threads);
    dvt_status status = check_stream(a, known, error);
    if (status == DVT_OK)
        status = dvt_frame_for(a, inputs, input_count, known->stream, &f, error);
    if (status != DVT_OK) {
        dvt_ask_threads(before);
        return status;
    }
    for (uint32_t i = 0; i < p->output_count; i++)
        outputs[i] = NULL;
    dvt_run_options options = *known;
    if (options.state == NULL)
        options.state = &a->own_state; /* the frame has seen to it that it is there */
    bool was_alone = dvt_alone(p->host_call_count + p->host_blob_count == 0);
    run_control *outer = dvt_control_set(control);
    status = charge_scratch(a, f, error);
    if (status == DVT_OK)
        status = run_frame(a, f, &options, inputs, outputs, error);
    dvt_control_set(outer);
    dvt_alone(was_alone);
    dvt_ask_threads(before);
    dvt_frame_give(a, f);
    return status;
}

dvt_status dvt_run(dvt_artifact *a, const dvt_run_options *options, const dvt_tensor *inputs,
                   size_t input_count, dvt_managed **outputs, size_t output_count,
                   dvt_error *error)
{
    dvt_run_options known;
    dvt_status status = dvt_run_options_read(&known, options, error);
    if (status != DVT_OK)
        return status;
    run_control control = {known.cancel, known.poll, known.poll_context, 0, false, NULL};
    bool controlled = known.cancel != NULL || known.poll != NULL;
    return dvt_run_controlled(a, &known, controlled ? &control : NULL, inputs, input_count,
                              outputs, output_count, error);
}

dvt_status dvt_output_shape(dvt_artifact *a, const dvt_tensor *inputs, size_t input_count,
                            size_t output, int64_t *shape, size_t rank, dvt_error *error)
{
    frame *f = NULL;
    if (output >= a->program.output_count ||
        rank != a->program.buffers[a->program.outputs[output]].rank)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "no output %zu, or one of another number of dimensions than %zu",
                        output, rank);
    dvt_status status = dvt_frame_for(a, inputs, input_count, NULL, &f, error);
    if (status != DVT_OK)
        return status;
    for (size_t i = 0; i < rank; i++)
        shape[i] = f->tensors[a->program.outputs[output]].shape[i];
    dvt_frame_give(a, f);
    return DVT_OK;
}
