/* Calls by name, and many calls at once. */
#include "call.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

typedef struct {
    dvt_tensor *inputs;
    dvt_tensor *results;
    dvt_managed **outputs;
} by_position;

static dvt_status place_inputs(const dvt_artifact *a, const char *const *names,
                               const dvt_tensor *given, size_t count, by_position *to,
                               dvt_error *error)
{
    if (count != a->program.input_count)
        return dvt_fail(error, DVT_ERROR_GUARD, "called with %zu tensors, expected %u", count,
                        a->program.input_count);
    for (size_t i = 0; i < count; i++) {
        size_t at = names[i] != NULL ? dvt_find_input(a, names[i]) : SIZE_MAX;
        if (at == SIZE_MAX)
            return dvt_fail(error, DVT_ERROR_GUARD, "the model has no input '%.200s'",
                            names[i] != NULL ? names[i] : "");
        for (size_t j = 0; j < i; j++)
            if (names[j] == names[i] || strcmp(names[j], names[i]) == 0)
                return dvt_fail(error, DVT_ERROR_GUARD, "input '%.200s' is given twice",
                                names[i]);
        to->inputs[at] = given[i];
    }
    return DVT_OK;
}

/* Where each output that is wanted lies among all. */
static dvt_status place_outputs(const dvt_artifact *a, const char *const *names,
                                const dvt_tensor *results, size_t count, size_t *places,
                                by_position *to, dvt_error *error)
{
    for (size_t i = 0; i < count; i++) {
        places[i] = names[i] != NULL ? dvt_find_output(a, names[i]) : SIZE_MAX;
        if (places[i] == SIZE_MAX)
            return dvt_fail(error, DVT_ERROR_ARGUMENT, "the model has no output '%.200s'",
                            names[i] != NULL ? names[i] : "");
        for (size_t j = 0; j < i; j++)
            if (places[j] == places[i])
                return dvt_fail(error, DVT_ERROR_ARGUMENT, "output '%.200s' is asked for twice",
                                names[i]);
        if (results != NULL)
            to->results[places[i]] = results[i];
    }
    return DVT_OK;
}

static dvt_status run_placed(dvt_artifact *a, const dvt_run_options *known,
                             const by_position *by, const size_t *places, dvt_managed **outputs,
                             size_t output_count, dvt_error *error)
{
    const program *p = &a->program;
    dvt_run_options options = *known;
    options.results = by->results;
    dvt_status status =
        dvt_run(a, &options, by->inputs, p->input_count, by->outputs, p->output_count, error);
    for (size_t i = 0; status == DVT_OK && i < output_count; i++) {
        outputs[i] = by->outputs[places[i]];
        by->outputs[places[i]] = NULL;
    }
    if (status == DVT_OK)
        dvt_drop_outputs(p, by->outputs);
    return status;
}

dvt_status dvt_run_named(dvt_artifact *a, const dvt_run_options *options,
                         const char *const *input_names, const dvt_tensor *inputs,
                         size_t input_count, const char *const *output_names,
                         dvt_managed **outputs, size_t output_count, dvt_error *error)
{
    const program *p = &a->program;
    dvt_run_options known;
    dvt_status status = dvt_run_options_read(&known, options, error);
    if (status != DVT_OK)
        return status;
    if (output_count > p->output_count)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "%zu outputs are asked for, there are %u",
                        output_count, p->output_count);
    by_position by = {calloc(p->input_count + 1u, sizeof *by.inputs),
                      calloc(p->output_count + 1u, sizeof *by.results),
                      calloc(p->output_count + 1u, sizeof *by.outputs)};
    size_t *places = calloc(output_count + 1, sizeof *places);
    if (!by.inputs || !by.results || !by.outputs || !places)
        status = dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    if (status == DVT_OK)
        status = place_inputs(a, input_names, inputs, input_count, &by, error);
    if (status == DVT_OK)
        status =
            place_outputs(a, output_names, known.results, output_count, places, &by, error);
    if (status == DVT_OK)
        status = run_placed(a, &known, &by, places, outputs, output_count, error);
    free(by.inputs);
    free(by.results);
    free(by.outputs);
    free(places);
    return status;
}

/* ---- batches ---- */

typedef struct {
    dvt_artifact *artifact;
    const dvt_run_options *options;
    char *calls; /* of the caller's size */
    size_t size;
    run_control control;
    pthread_t caller;
} batch;

/* A call of a caller whose structure is shorter has zeros for the rest. */
static dvt_batch_call call_at(const batch *b, size_t index)
{
    dvt_batch_call known = {0};
    memcpy(&known, b->calls + b->size * index, b->size < sizeof known ? b->size : sizeof known);
    return known;
}

static void set_status(const batch *b, size_t index, dvt_status status)
{
    memcpy(b->calls + b->size * index + offsetof(dvt_batch_call, status), &status,
           sizeof status);
}

static void run_one(batch *b, size_t index)
{
    dvt_batch_call call = call_at(b, index);
    dvt_run_options options = *b->options;
    options.results = call.results;
    options.state = call.state;
    /* Only the thread that called asks the caller; the others stop when it was told to. */
    run_control helper = {b->control.cancel, NULL, NULL, 0, false, &b->control};
    bool is_caller = pthread_equal(b->caller, pthread_self());
    if (!is_caller)
        options.trace = NULL;
    dvt_status status = dvt_run_controlled(
        b->artifact, &options, is_caller ? &b->control : &helper, call.inputs, call.input_count,
        call.outputs, call.output_count, call.error);
    set_status(b, index, status);
}

static void run_some(void *context, int64_t begin, int64_t end)
{
    batch *b = context;
    for (int64_t i = begin; i < end && !dvt_control_stopped(&b->control); i++)
        run_one(b, (size_t)i);
}

static int by_address(const void *left, const void *right)
{
    uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
    return (a > b) - (a < b);
}

/* Whether two calls use one state; true where that cannot be found out. */
static bool share_state(const batch *b, size_t count)
{
    if (b->artifact->state_count == 0)
        return false;
    uintptr_t *states = calloc(count, sizeof *states);
    if (states == NULL)
        return true;
    for (size_t i = 0; i < count; i++) {
        const dvt_state *own = &b->artifact->own_state, *state = call_at(b, i).state;
        states[i] = (uintptr_t)(state == NULL ? own : state);
    }
    qsort(states, count, sizeof *states, by_address);
    bool found = false;
    for (size_t i = 1; i < count; i++)
        found = found || states[i] == states[i - 1];
    free(states);
    return found;
}

static bool goes_in_order(const batch *b, size_t count)
{
    const program *p = &b->artifact->program;
    size_t threads = b->options->threads > 0 ? b->options->threads : (size_t)dvt_threads();
    return p->host_call_count + p->host_blob_count + p->device_count > 0 || count < threads ||
           (p->writes_inputs && !b->artifact->may_overlap) || share_state(b, count);
}

static void run_all(batch *b, size_t count)
{
    if (goes_in_order(b, count)) {
        run_some(b, 0, (int64_t)count);
        return;
    }
    int before = dvt_ask_threads((int)b->options->threads);
    run_control *outer = dvt_control_set(&b->control);
    dvt_parallel((int64_t)count, 1, run_some, b);
    dvt_control_set(outer);
    dvt_ask_threads(before);
}

dvt_status dvt_run_batch(dvt_artifact *a, const dvt_run_options *options, dvt_batch_call *calls,
                         size_t count, dvt_error *error)
{
    const uint32_t least = offsetof(dvt_batch_call, output_count) + sizeof calls->output_count;
    dvt_run_options known;
    dvt_status status = dvt_run_options_read(&known, options, error);
    if (status != DVT_OK || count == 0)
        return status;
    batch b = {.artifact = a,
               .options = &known,
               .calls = (char *)calls,
               .size = calls->struct_size,
               .control = {known.cancel, known.poll, known.poll_context, 0, false, NULL},
               .caller = pthread_self()};
    for (size_t i = 0; i < count; i++) {
        uint32_t size = 0;
        if (b.size >= least)
            memcpy(&size, b.calls + b.size * i, sizeof size);
        if (size != b.size)
            return dvt_fail(error, DVT_ERROR_ARGUMENT,
                            "dvt_batch_call: set struct_size, the same for all");
        set_status(&b, i, DVT_ERROR_CANCELLED);
    }
    run_all(&b, count);
    for (size_t i = 0; status == DVT_OK && i < count; i++) {
        memcpy(&status, b.calls + b.size * i + offsetof(dvt_batch_call, status), sizeof status);
        if (status != DVT_OK)
            dvt_fail(error, status, "call %zu of the batch: %s", i, dvt_status_text(status));
    }
    return status;
}
