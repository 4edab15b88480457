/* Several threads open, use for the first time, stop and close artifacts at once, on our own
 * threads: built with the thread sanitizer (make tsan), which ends it at the first race.
 *
 *     tsan_runtime FILE.dvt... */
#include "internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4
#define ROUNDS  8
#define FEW     32
#define CALLS   4 /* of a batch */

typedef struct {
    const char *path;
    dvt_artifact *shared; /* opened by one thread, used by all of them */
    int number;
} visitor;

static atomic_int completed, opened;

/* Zeros of the shape that the artifact asks for, 3 where it is open. */
static bool make_input(const dvt_tensor_info *info, dvt_tensor *t)
{
    int64_t *numbers = calloc((size_t)info->ndim * 2 + 1, sizeof *numbers);
    size_t elements = 1;
    *t = (dvt_tensor){.device = {DVT_CPU, 0}, .ndim = info->ndim, .dtype = info->dtype};
    t->shape = numbers;
    for (int32_t d = 0; numbers != NULL && d < info->ndim; d++) {
        numbers[d] = info->shape[d] >= 0 ? info->shape[d] : 3;
        elements *= (size_t)numbers[d];
    }
    t->data = numbers != NULL && elements < 1 << 24 ? calloc(elements + 1, 16) : NULL;
    return t->data != NULL;
}

/* The same inputs in several calls at once, one of them on a state of its own. */
static void run_together(dvt_artifact *a, const dvt_run_options *options,
                         const dvt_tensor *inputs, size_t given, size_t results)
{
    dvt_managed *outputs[CALLS][FEW] = {{NULL}};
    dvt_batch_call calls[CALLS];
    for (int i = 0; i < CALLS; i++)
        calls[i] = (dvt_batch_call){.struct_size = sizeof calls[i],
                                    .inputs = inputs,
                                    .input_count = given,
                                    .outputs = outputs[i],
                                    .output_count = results,
                                    .state = i == 0 ? options->state : NULL};
    dvt_run_batch(a, options, calls, CALLS, NULL);
    for (int i = 0; i < CALLS; i++)
        for (size_t n = 0; calls[i].status == DVT_OK && n < results; n++)
            outputs[i][n]->deleter(outputs[i][n]);
}

static void run_once(dvt_artifact *a, const volatile int32_t *cancel, dvt_state *state)
{
    dvt_tensor inputs[FEW] = {{0}};
    dvt_managed *outputs[FEW] = {NULL};
    dvt_error error;
    size_t given = dvt_input_count(a), results = dvt_output_count(a);
    bool ready = given <= FEW && results <= FEW;
    for (size_t i = 0; ready && i < given; i++)
        ready = make_input(dvt_input_info(a, i), &inputs[i]);
    dvt_run_options options = {.struct_size = sizeof options, .cancel = cancel, .state = state};
    if (ready)
        run_together(a, &options, inputs, given, results);
    if (ready && dvt_run(a, &options, inputs, given, outputs, results, &error) == DVT_OK) {
        atomic_fetch_add(&completed, 1);
        for (size_t i = 0; i < results; i++)
            outputs[i]->deleter(outputs[i]);
    }
    for (size_t i = 0; i < given && i < FEW; i++) {
        free(inputs[i].shape);
        free(inputs[i].data);
    }
}

static void *visit(void *argument)
{
    const visitor *v = argument;
    volatile int32_t stopped = v->number == 1;
    for (int i = 0; i < ROUNDS; i++) {
        dvt_artifact *own = NULL;
        dvt_memory memory = {.struct_size = sizeof memory};
        dvt_error error;
        if (v->shared != NULL) {
            dvt_state *state = NULL, *shared = dvt_own_state(v->shared);
            dvt_state_new(v->shared, shared, &state, &error);
            run_once(v->shared, NULL, NULL);
            run_once(v->shared, &stopped, state);
            if (shared != NULL && v->number == 2)
                dvt_state_reset(shared, &error);
            dvt_state_free(state);
            dvt_memory_used(v->shared, &memory);
            dvt_cleared_bytes(v->shared);
        }
        if (dvt_open(v->path, NULL, &own, &error) == DVT_OK) {
            atomic_fetch_add(&opened, 1);
            run_once(own, NULL, NULL);
        }
        dvt_close(own);
        dvt_set_threads(1 + (i + v->number) % 3);
    }
    return NULL;
}

static void visit_file(const char *path)
{
    pthread_t threads[THREADS];
    visitor visitors[THREADS];
    dvt_artifact *shared = NULL;
    dvt_error error;
    dvt_open(path, NULL, &shared, &error); /* its first use is by all of them at once */
    for (int i = 0; i < THREADS; i++) {
        visitors[i] = (visitor){path, shared, i};
        if (pthread_create(&threads[i], NULL, visit, &visitors[i]) != 0)
            abort();
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    dvt_close(shared);
}

static void sum(void *context, int64_t begin, int64_t end)
{
    atomic_fetch_add((atomic_llong *)context, end - begin);
}

static void *use_pool(void *unused)
{
    for (int i = 0; i < 200; i++) {
        atomic_llong total = 0;
        dvt_parallel(1000, 1, sum, &total);
        if (atomic_load(&total) != 1000)
            abort();
    }
    return unused;
}

int main(int count, char **paths)
{
    pthread_t threads[THREADS];
    dvt_set_threads(3);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, use_pool, NULL) != 0)
            abort();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < count; i++)
        visit_file(paths[i]);
    bool enough = atomic_load(&opened) > ROUNDS * THREADS && atomic_load(&completed) > ROUNDS;
    printf("native/tests/tsan_runtime: %d opened, %d runs completed: %s\n",
           atomic_load(&opened), atomic_load(&completed), enough ? "ok" : "TOO FEW");
    return !enough;
}
