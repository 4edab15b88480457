/* Strands: instructions in a row that fall into groups, none of which touches what another
 * writes, such as the two directions of a recurrent layer. Threads then take whole groups and
 * meet once, at the end, instead of at every kernel. A group computes what it did before; its
 * temporaries lie where no other group's do (arena.c), so the order between groups is free. */
#include "call.h"
#include "kernel_ir.h"

#include <pthread.h>
#include <stdlib.h>

/* Nanoseconds. Of a kernel's instruction at one point, in vectors of 64 bytes: products take
 * as much, exponentials ten times that, so that short kernels are taken for shorter. */
#define EACH 0.004
/* That each kernel takes longer for being shared, and what is worth a thread (the scheduler's
 * thread_seconds). */
#define BARRIER 2000.0
#define WORTH   3000.0
/* By which factor strands must be faster: what kernels take is known no better. */
#define SURE 1.25
/* Of the gain of one stretch, that of a longer one: what adds nothing is taken along. */
#define SAME 0.99
/* Steps of the search for each instruction. */
#define EFFORT       64
#define MOST_STRANDS 64u

typedef struct {
    double work;
    uint32_t at, strand; /* the root of its tree */
} group;

typedef struct {
    const program *p;
    frame *f;
    uint32_t threads;
    uint32_t *deps_at, *deps; /* of each instruction: those of the run it must come after */
    uint32_t *free_until;     /* 1 + the last of these; then the least of it from here on */
    double *work;             /* on one thread */
    uint32_t *parent;         /* groups, as trees */
    double *sum;              /* the work of a group, at its tree's root */
    uint32_t *accessed, *written, *finally; /* of each root: the last, in all of the run */
    group *groups;
    uint64_t steps;
} search;

/* ---- which instructions ---- */

static bool is_temporary(const program *p, uint32_t buffer)
{
    const buffer_record *root = &p->buffers[p->buffers[buffer].root];
    return root->kind == KIND_TEMPORARY || root->kind == KIND_OUTPUT;
}

/* Whether an instruction may change places with others that touch nothing of what it does:
 * what it writes is the program's own, no host is told of its end, and no interpreter needs
 * memory of its own in each thread. */
static bool is_movable(const program *p, const instruction *in)
{
    if (!dvt_is_own(in) || in->release_count > 0 ||
        (in->opcode == OP_KERNEL && in->kernel->check == dvt_kernel_ir_check))
        return false;
    for (uint32_t i = 0; i < in->output_count; i++)
        if (in->outputs[i] != DVT_NONE && !is_temporary(p, in->outputs[i]))
            return false;
    return true;
}

/* ---- what must come after what ---- */

static void forget(search *s, uint32_t count, const uint32_t *buffers)
{
    for (uint32_t i = 0; i < count; i++) {
        if (buffers[i] == DVT_NONE)
            continue;
        uint32_t root = s->p->buffers[buffers[i]].root;
        s->accessed[root] = s->written[root] = s->finally[root] = DVT_NONE;
    }
}

static void note_writes(search *s, uint32_t *last, uint32_t at)
{
    const instruction *in = &s->p->instructions[at];
    for (uint32_t i = 0; i < in->output_count; i++)
        if (in->outputs[i] != DVT_NONE)
            last[s->p->buffers[in->outputs[i]].root] = at;
}

static void depend(search *s, uint32_t *count, uint32_t at, uint32_t on)
{
    if (on == DVT_NONE)
        return;
    s->deps[(*count)++] = on;
    if (s->free_until[at] < on + 1)
        s->free_until[at] = on + 1;
}

/* Who reads what nobody writes any more comes after its writer; who writes, or reads what will
 * be written, after whoever touched it last. */
static void list_deps(search *s, uint32_t at, uint32_t *count)
{
    const instruction *in = &s->p->instructions[at];
    s->deps_at[at] = *count;
    s->free_until[at] = 0;
    for (uint32_t i = 0; i < in->input_count; i++) {
        if (in->inputs[i] == DVT_NONE)
            continue;
        uint32_t root = s->p->buffers[in->inputs[i]].root, last = s->finally[root];
        bool is_final = last == DVT_NONE || last < at;
        depend(s, count, at, is_final ? s->written[root] : s->accessed[root]);
    }
    for (uint32_t i = 0; i < in->output_count; i++)
        if (in->outputs[i] != DVT_NONE)
            depend(s, count, at, s->accessed[s->p->buffers[in->outputs[i]].root]);
    for (uint32_t i = 0; i < in->input_count; i++)
        if (in->inputs[i] != DVT_NONE)
            s->accessed[s->p->buffers[in->inputs[i]].root] = at;
    note_writes(s, s->accessed, at);
    note_writes(s, s->written, at);
    s->deps_at[at + 1] = *count;
}

/* False where each instruction of the run but the first needs another of it that is not far:
 * no two groups can begin. */
static bool analyse(search *s, uint32_t begin, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t i = begin; i < end; i++) {
        const instruction *in = &s->p->instructions[i];
        forget(s, in->input_count, in->inputs);
        forget(s, in->output_count, in->outputs);
    }
    for (uint32_t i = begin; i < end; i++)
        note_writes(s, s->finally, i);
    for (uint32_t i = begin; i < end; i++)
        list_deps(s, i, &count);
    bool forks = false;
    for (uint32_t i = end - 1; i-- > begin;) {
        if (s->free_until[i + 1] <= i)
            forks = true;
        if (s->free_until[i] > s->free_until[i + 1])
            s->free_until[i] = s->free_until[i + 1];
    }
    return forks;
}

/* ---- what they take ---- */

/* A kernel that refuses its operands takes nothing: binding it says why. */
static double work_of(const frame *f, uint32_t at)
{
    dvt_call call = f->calls[at];
    dvt_error ignored;
    if (call.kernel == NULL)
        return EACH * (double)dvt_work_of(&call);
    const dvt_kernel *described = dvt_kernel_described(call.kernel);
    if (described != NULL) {
        call.kernel = described;
        double points = (double)dvt_kernel_ir_work(&call);
        return EACH * points * ((const kernel_ir *)(const void *)described)->instruction_count;
    }
    if (call.kernel->check(&call, &ignored) != DVT_OK)
        return 0;
    return EACH * (double)dvt_work_of(&call);
}

/* With all threads at one kernel. */
static double shared_time(const search *s, double work)
{
    double threads = work / WORTH < s->threads ? work / WORTH : s->threads;
    return threads < 2 ? work : work / threads + BARRIER;
}

/* ---- groups ---- */

static uint32_t group_of(search *s, uint32_t at)
{
    while (s->parent[at] != at)
        at = s->parent[at] = s->parent[s->parent[at]];
    return at;
}

/* Adds an instruction to those from `begin` on; how many groups there are less than before it.
 */
static uint32_t join_groups(search *s, uint32_t begin, uint32_t at)
{
    uint32_t joined = 0;
    s->parent[at] = at;
    s->sum[at] = s->work[at];
    for (uint32_t n = s->deps_at[at]; n < s->deps_at[at + 1]; n++) {
        uint32_t other = s->deps[n] >= begin ? group_of(s, s->deps[n]) : at;
        if (other == at)
            continue;
        s->parent[other] = at;
        s->sum[at] += s->sum[other];
        joined++;
    }
    return joined;
}

/* Where a stretch that begins here had better end; here: nowhere. */
static uint32_t best_end(search *s, uint32_t begin, uint32_t end)
{
    double total = 0, shared = 0, longest = 0, most = 0;
    uint32_t groups = 0, best = begin;
    for (uint32_t at = begin; at < end && s->steps > 0; at++, s->steps--) {
        groups += 1 - join_groups(s, begin, at);
        total += s->work[at];
        shared += shared_time(s, s->work[at]);
        longest = s->sum[at] > longest ? s->sum[at] : longest;
        double even = total / s->threads, gain = shared - (even > longest ? even : longest);
        if (groups > 1 && gain >= SAME * most) {
            most = gain > most ? gain : most;
            best = at + 1;
        }
        if (groups == 1 && at + 1 < end && s->free_until[at + 1] > begin)
            break; /* no other group can begin any more */
    }
    return best;
}

static int by_work(const void *left, const void *right)
{
    const group *a = left, *b = right;
    if (a->work != b->work)
        return a->work > b->work ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static uint32_t list_groups(search *s, uint32_t begin, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t at = begin; at < end; at++)
        join_groups(s, begin, at);
    for (uint32_t at = begin; at < end; at++)
        if (s->parent[at] == at)
            s->groups[count++] = (group){s->sum[at], at, 0};
    qsort(s->groups, count, sizeof *s->groups, by_work);
    return count;
}

/* Gives each group, the longest first, to the strand that has least; what the longest takes. */
static double deal(search *s, uint32_t count, uint32_t strands, double *taken)
{
    double most = 0;
    for (uint32_t n = 0; n < strands; n++)
        taken[n] = 0;
    for (uint32_t n = 0; n < count; n++) {
        uint32_t least = 0;
        for (uint32_t i = 1; i < strands; i++)
            if (taken[i] < taken[least])
                least = i;
        s->groups[n].strand = least;
        taken[least] += s->groups[n].work;
        most = taken[least] > most ? taken[least] : most;
    }
    return most;
}

static void add_stretch(search *s, uint32_t begin, uint32_t end, uint32_t groups,
                        uint32_t strands)
{
    frame *f = s->f;
    for (uint32_t n = 0; n < groups; n++)
        f->strand_of[s->groups[n].at] = s->groups[n].strand;
    for (uint32_t at = begin; at < end; at++)
        f->strand_of[at] = f->strand_of[group_of(s, at)];
    f->stretches[f->stretch_count++] = (strand_stretch){begin, end, strands};
}

/* Makes a stretch of instructions where that is sure to pay. */
static bool make_stretch(search *s, uint32_t begin, uint32_t end)
{
    double taken[MOST_STRANDS], shared = 0;
    if (end == begin)
        return false;
    uint32_t groups = list_groups(s, begin, end);
    uint32_t strands = groups < s->threads ? groups : s->threads;
    double longest = deal(s, groups, strands, taken) + BARRIER;
    for (uint32_t at = begin; at < end; at++)
        shared += shared_time(s, s->work[at]);
    if (strands < 2 || shared < SURE * longest)
        return false;
    add_stretch(s, begin, end, groups, strands);
    return true;
}

/* ---- the search ---- */

static void search_run(search *s, uint32_t begin, uint32_t end)
{
    if (end - begin < 2 || !analyse(s, begin, end))
        return;
    for (uint32_t at = begin; at < end; at++)
        s->work[at] = work_of(s->f, at);
    while (begin + 1 < end && s->steps > 0) {
        bool forks = s->free_until[begin + 1] <= begin;
        uint32_t stop = forks ? best_end(s, begin, end) : begin;
        begin = make_stretch(s, begin, stop) ? stop : begin + 1;
    }
}

static bool allocate(search *s)
{
    uint32_t n = s->p->instruction_count + 1, roots = s->p->buffer_count + 1;
    s->deps_at = calloc(n, sizeof *s->deps_at);
    s->deps = calloc(s->p->pointer_count + 1, sizeof *s->deps);
    s->free_until = calloc(n, sizeof *s->free_until);
    s->parent = calloc(n, sizeof *s->parent);
    s->accessed = calloc(roots, 3 * sizeof *s->accessed);
    s->work = calloc(n, 2 * sizeof *s->work);
    s->groups = calloc(n, sizeof *s->groups);
    s->f->stretches = calloc(n, sizeof *s->f->stretches);
    if (s->deps_at == NULL || s->deps == NULL || s->free_until == NULL || s->parent == NULL ||
        s->accessed == NULL || s->work == NULL || s->groups == NULL || s->f->stretches == NULL)
        return false;
    s->written = s->accessed + roots;
    s->finally = s->written + roots;
    s->sum = s->work + n;
    return true;
}

static void free_search(search *s)
{
    free(s->deps_at);
    free(s->deps);
    free(s->free_until);
    free(s->parent);
    free(s->accessed);
    free(s->work);
    free(s->groups);
}

dvt_status dvt_strands_find(const program *p, frame *f, dvt_error *error)
{
    uint32_t threads = (uint32_t)dvt_threads(), count = p->instruction_count, end;
    search s = {.p = p, .f = f, .threads = threads < MOST_STRANDS ? threads : MOST_STRANDS};
    f->strand_threads = threads;
    if (threads < 2 || p->device_count > 0)
        return DVT_OK;
    bool is_there = allocate(&s);
    s.steps = (uint64_t)EFFORT * count;
    for (uint32_t at = 0; is_there && at < count; at = end + 1) {
        for (end = at; end < count && is_movable(p, &p->instructions[end]);)
            end++;
        search_run(&s, at, end);
    }
    free_search(&s);
    return is_there ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
}

void dvt_strands_keep(frame *f)
{
    uint32_t kept = 0, next = 0;
    for (uint32_t n = 0; n < f->stretch_count; n++) {
        const strand_stretch s = f->stretches[n];
        while (next < f->clearing_count && f->clearings[next].at < s.begin)
            next++;
        if (next == f->clearing_count || f->clearings[next].at >= s.end)
            f->stretches[kept++] = s;
    }
    f->stretch_count = kept;
}

/* ---- running ---- */

typedef struct {
    const dvt_artifact *artifact;
    const frame *f;
    const strand_stretch *s;
    run_control *control;
    pthread_mutex_t lock; /* of what failed */
    uint32_t failed;      /* the first instruction that did, or DVT_NONE */
    dvt_status status;
    dvt_error *error; /* NULL: nobody wants the words */
} strands_run;

static void note_failure(strands_run *r, uint32_t at, dvt_status status, const dvt_error *error)
{
    pthread_mutex_lock(&r->lock);
    if (at < r->failed) {
        r->failed = at;
        r->status = status;
        if (r->error != NULL)
            *r->error = *error;
    }
    pthread_mutex_unlock(&r->lock);
}

/* To its end, whatever others meet: the failure that is told is the first of the program's. */
static void run_strand(strands_run *r, uint32_t strand)
{
    bool is_timed = r->artifact->times != NULL;
    for (uint32_t at = r->s->begin; at < r->s->end; at++) {
        if (r->f->strand_of[at] != strand)
            continue;
        if (dvt_control_stopped(r->control))
            return;
        dvt_error error = {0};
        uint64_t start = is_timed ? dvt_now() : 0;
        dvt_status status = dvt_run_own(&r->artifact->program, r->f, at, &error);
        if (status != DVT_OK) {
            note_failure(r, at, status, &error);
            return;
        }
        if (is_timed)
            dvt_note_time(r->artifact, at, start, dvt_now());
    }
}

static void run_strands(void *context, int64_t begin, int64_t end)
{
    for (int64_t n = begin; n < end; n++)
        run_strand(context, (uint32_t)n);
}

dvt_status dvt_strands_run(const dvt_artifact *a, const frame *f, const strand_stretch *s,
                           run_control *control, dvt_error *error)
{
    strands_run r = {.artifact = a,
                     .f = f,
                     .s = s,
                     .control = control,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .failed = DVT_NONE,
                     .error = error};
    dvt_parallel(s->strands, 1, run_strands, &r);
    pthread_mutex_destroy(&r.lock);
    return r.status;
}
