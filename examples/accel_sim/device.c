/* The device: a process with memory of its own, which carries out the commands of each stream
 * in order, a thread a stream. It ends when the host's process does. */
#define _GNU_SOURCE
#include "device.h"

#include "dovetail_plugin.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LONG  1000000000u /* nanoseconds: nobody waits without looking again */
#define WATCH 100000000u  /* how often the host's process is looked for */

static sim_shared *shared;
static unsigned char *memory; /* all that the device has; no other process sees it */

static const sim_run RUN[] = {
#define X(name) sim_run_##name,
    SIM_KERNELS(X)
#undef X
};

/* What was noted, to be carried out in one go: its number, and its commands. */
static struct {
    sim_command *commands;
    uint32_t count, room;
} graphs[SIM_GRAPHS + 1];

static void ring(void)
{
    atomic_fetch_add(&shared->bell, 1);
    sim_wake(&shared->bell);
}

static void pause_for(long nanoseconds)
{
    nanosleep(&(struct timespec){nanoseconds / 1000000000, nanoseconds % 1000000000}, NULL);
}

/* ---- copies ---- */

static void await_window(sim_stream *s, uint32_t state)
{
    for (uint32_t now = atomic_load(&s->window); now != state; now = atomic_load(&s->window))
        sim_sleep(&s->window, now, LONG);
}

static void copy_in(sim_stream *s, const sim_command *c)
{
    for (uint64_t moved = 0; moved < c->bytes;) {
        uint64_t bytes = c->bytes - moved < SIM_WINDOW ? c->bytes - moved : SIM_WINDOW;
        atomic_store(&s->window_bytes, (uint32_t)bytes);
        atomic_store(&s->window, SIM_WINDOW_WANTED);
        ring();
        await_window(s, SIM_WINDOW_FULL);
        memcpy(memory + c->destination + moved, s->bytes, bytes);
        atomic_store(&s->window, SIM_WINDOW_IDLE);
        moved += bytes;
    }
    atomic_fetch_add(&shared->bytes_in, c->bytes);
}

static void copy_out(sim_stream *s, const sim_command *c)
{
    for (uint64_t moved = 0; moved < c->bytes;) {
        uint64_t bytes = c->bytes - moved < SIM_WINDOW ? c->bytes - moved : SIM_WINDOW;
        memcpy(s->bytes, memory + c->source + moved, bytes);
        atomic_store(&s->window_bytes, (uint32_t)bytes);
        atomic_store(&s->window, SIM_WINDOW_FULL);
        ring();
        await_window(s, SIM_WINDOW_IDLE);
        moved += bytes;
    }
    atomic_fetch_add(&shared->bytes_out, c->bytes);
}

/* What the host sees too is the host's traffic. */
static void count(const sim_command *c)
{
    bool in = c->kind == SIM_READ_HOST || c->source >= shared->heap_at;
    bool out = c->kind == SIM_WRITE_HOST || c->destination >= shared->heap_at;
    atomic_fetch_add(in == out ? &shared->bytes_between
                     : in      ? &shared->bytes_in
                               : &shared->bytes_out,
                     c->bytes);
}

/* As a device that reads and writes the host's memory by itself. */
static const char *reach_host(const sim_command *c, pid_t host)
{
    bool in = c->kind == SIM_READ_HOST;
    struct iovec here = {memory + (in ? c->destination : c->source), c->bytes};
    struct iovec there = {(void *)(uintptr_t)(in ? c->source : c->destination), c->bytes};
    ssize_t moved = in ? process_vm_readv(host, &here, 1, &there, 1, 0)
                       : process_vm_writev(host, &here, 1, &there, 1, 0);
    if (moved < 0 || (uint64_t)moved != c->bytes)
        return "imported memory cannot be reached";
    count(c);
    return NULL;
}

/* ---- kernels ---- */

/* Whether all elements of a tensor lie in its buffer, and the buffer in memory. */
static bool is_inside(const sim_tensor *t)
{
    if (t->rank < 0)
        return true;
    uint64_t all = shared->heap_at + SIM_HEAP;
    if (t->room > all || t->address > all - t->room || t->rank > SIM_RANK)
        return false;
    if (t->prepared)
        return t->address % SIM_ALIGN == 0;
    uint64_t last = 0, item = t->bits / 8u, half = t->bits == 4;
    for (int32_t i = 0; i < t->rank; i++) {
        uint64_t part;
        if (t->shape[i] == 0)
            return true;
        if (t->shape[i] < 0 || t->strides[i] < 0 ||
            __builtin_mul_overflow((uint64_t)(t->shape[i] - 1), (uint64_t)t->strides[i],
                                   &part) ||
            __builtin_add_overflow(last, part, &last))
            return false;
    }
    item += half;
    return item > 0 && t->address % item == 0 && last >> half < t->room / item;
}

static void misbehave(int32_t fault)
{
    if (fault == SIM_DIE)
        kill(getpid(), SIGKILL);
    while (fault == SIM_HANG)
        pause_for(LONG);
    if (fault == SIM_SLOW)
        pause_for(200000000);
}

static const char *run_kernel(const sim_command *c)
{
    for (uint32_t i = 0; i < c->outputs + c->inputs + c->scales; i++)
        if (!is_inside(&c->tensors[i]))
            return "a tensor does not lie in its buffer";
    uint32_t busy = atomic_fetch_add(&shared->busy, 1) + 1;
    uint32_t most = atomic_load(&shared->most_busy);
    while (busy > most && !atomic_compare_exchange_weak(&shared->most_busy, &most, busy))
        continue;
    misbehave(c->fault);
    const char *problem = c->fault == SIM_FAIL     ? "a fault was injected in a kernel"
                          : c->kind == SIM_PREPARE ? sim_run_prepare(c, memory)
                                                   : RUN[c->kernel](c, memory);
    if (problem == NULL && c->fault == SIM_WRONG && sim_count(&c->tensors[0]) > 0)
        sim_store(&c->tensors[0], memory, 0, 1e6);
    atomic_fetch_add(c->kind == SIM_PREPARE ? &shared->prepared : &shared->launched, 1);
    atomic_fetch_sub(&shared->busy, 1);
    return problem;
}

static const char *carry_out(sim_stream *s, const sim_command *c)
{
    if (c->kind == SIM_KERNEL || c->kind == SIM_PREPARE)
        return run_kernel(c);
    if (c->kind == SIM_WAIT) {
        sim_stream *other = &shared->streams[c->stream];
        for (uint32_t done; !sim_reached(done = atomic_load(&other->done), c->upto);)
            sim_sleep(&other->done, done, LONG);
        return NULL;
    }
    misbehave(c->fault);
    if (c->fault == SIM_FAIL)
        return "a fault was injected in a copy";
    if (c->kind == SIM_COPY_IN)
        copy_in(s, c);
    else if (c->kind == SIM_COPY_OUT)
        copy_out(s, c);
    else if (c->kind == SIM_COPY) {
        memmove(memory + c->destination, memory + c->source, c->bytes);
        count(c);
    } else
        return reach_host(c, getppid());
    return NULL;
}

static const char *note(const sim_command *c)
{
    if (c->graph > SIM_GRAPHS || c->place > graphs[c->graph].room)
        return "a graph that cannot be noted";
    if (c->place == graphs[c->graph].room) {
        uint32_t room = 2 * c->place + 8;
        sim_command *grown = realloc(graphs[c->graph].commands, room * sizeof *grown);
        if (grown == NULL)
            return "no memory for a graph";
        graphs[c->graph].commands = grown;
        graphs[c->graph].room = room;
    }
    graphs[c->graph].commands[c->place] = *c;
    graphs[c->graph].count = c->place + 1;
    return NULL;
}

static const char *replay(sim_stream *s, const sim_command *c)
{
    const char *problem = c->graph == 0 || c->graph > SIM_GRAPHS ? "no such graph" : NULL;
    for (uint32_t i = 0; problem == NULL && i < graphs[c->graph].count; i++) {
        sim_command one = graphs[c->graph].commands[i];
        one.fault = i == c->place || c->fault == SIM_SLOW ? c->fault : SIM_SOUND;
        problem = carry_out(s, &one);
    }
    return problem;
}

static void *serve(void *argument)
{
    sim_stream *s = argument;
    for (uint32_t done = 0;; done++) {
        while (atomic_load(&s->given) == done)
            sim_sleep(&s->given, done, LONG);
        const sim_command *c = &s->slots[(done + 1) % SIM_SLOTS];
        const char *problem = NULL;
        atomic_fetch_add(&shared->messages, 1);
        if (c->kind != SIM_REPLAY && c->graph != 0)
            problem = note(c);
        else if (atomic_load(&s->failed) == DVP_OK || c->kind == SIM_WAIT)
            problem = c->kind == SIM_REPLAY ? replay(s, c) : carry_out(s, c);
        if (problem != NULL) {
            snprintf(s->message, sizeof s->message, "%s", problem);
            atomic_store(&s->failed, DVP_FAILED);
        }
        atomic_store(&s->done, done + 1);
        sim_wake(&s->done);
        ring();
    }
    return NULL;
}

int main(void)
{
    pid_t host = getppid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
    if (shared == MAP_FAILED)
        return 1;
    memory = mmap(NULL, shared->heap_at + SIM_HEAP, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mmap(memory + shared->heap_at, SIM_HEAP, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_FIXED, 3, SIM_HEAD) == MAP_FAILED)
        return 1;
    uint64_t probed = 0;
    struct iovec here = {&probed, sizeof probed},
                 there = {(void *)(uintptr_t)shared->probe, sizeof probed};
    bool reads = process_vm_readv(host, &here, 1, &there, 1, 0) == sizeof probed;
    atomic_store(&shared->reads_host, reads && probed == shared->probe);
    signal(SIGINT, SIG_IGN); /* Ctrl-C is for the host */
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, &shared->streams[i]) != 0)
            return 1;
    }
    atomic_store(&shared->ready, 1);
    sim_wake(&shared->ready);
    while (getppid() == host)
        pause_for(WATCH);
    return 0;
}
