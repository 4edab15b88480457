/* Nothing uninitialised is ever read: a frame's sizes are known, so what each instruction
 * writes and reads is known by elements. A buffer that is read, or handed out, where nothing
 * was proved to be written is cleared before its first use, in every run; programs that write
 * what they read, as compiled ones do, clear nothing.
 *
 * Memory that the program does not own is dealt with elsewhere: gaps in inputs and in what a
 * host call makes are not shown to a file that is not trusted (run.c). */
#include "defined.h"

#include <stdlib.h>
#include <string.h>

#define MOST_EFFORT (1u << 20) /* regions compared in one frame, before all else is cleared */
#define QUESTION    256        /* what one question takes at most beside, in regions */

bool dvt_has_gaps(const dvt_tensor *t)
{
    region r;
    dvt_region_of(t, 0, &r);
    return r.rank > 0;
}

dvt_status dvt_defined_begin(definedness *d, const program *p, frame *f, dvt_error *error)
{
    *d = (definedness){.p = p, .f = f};
    d->owners = calloc(p->buffer_count + 1u, sizeof *d->owners);
    if (d->owners == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        uint8_t kind = p->buffers[i].kind;
        d->owners[i].all = kind != KIND_OUTPUT && kind != KIND_TEMPORARY;
    }
    return DVT_OK;
}

void dvt_defined_free(definedness *d)
{
    for (uint32_t i = 0; d->owners != NULL && i < d->p->buffer_count; i++)
        free(d->owners[i].written);
    free(d->owners);
    d->owners = NULL;
}

static void all_of(const definedness *d, uint32_t owner, region *whole)
{
    int64_t item = d->p->buffers[owner].item;
    *whole = (region){.run = (int64_t)d->f->extents[owner] / item};
}

static void elements_of(const definedness *d, uint32_t buffer, region *made)
{
    const buffer_record *b = &d->p->buffers[buffer];
    dvt_region_of(&d->f->tensors[buffer], (int64_t)(d->f->offsets[buffer] / b->item), made);
}

static bool is_written(definedness *d, uint32_t owner, const region *wanted)
{
    const owner_state *o = &d->owners[owner];
    if (o->all || wanted->run == 0)
        return true;
    d->effort += o->count > 0 ? QUESTION + o->count : 0;
    return d->effort < MOST_EFFORT && dvt_region_covered(wanted, o->written, o->count);
}

/* Have a buffer cleared. One that takes another's memory must leave what lies there to the
 * instruction that reads it: only what goes beyond is cleared, and the other one is all
 * written, or cleared itself. */
static void clear(definedness *d, uint32_t owner)
{
    for (;;) {
        uint32_t base = d->p->buffers[owner].base;
        region whole;
        d->owners[owner].all = d->owners[owner].clears = true;
        if (base == DVT_NONE)
            return;
        owner = d->p->buffers[base].owner;
        all_of(d, owner, &whole);
        if (is_written(d, owner, &whole)) {
            d->owners[owner].all = true;
            return;
        }
    }
}

static void need(definedness *d, uint32_t buffer, bool gaps)
{
    uint32_t owner = d->p->buffers[buffer].owner;
    if (d->owners[owner].all)
        return;
    region elements, hull;
    elements_of(d, buffer, &elements);
    dvt_region_hull(&elements, &hull);
    if (!is_written(d, owner, gaps ? &hull : &elements))
        clear(d, owner);
}

static dvt_status add(definedness *d, uint32_t buffer, dvt_error *error)
{
    uint32_t owner = d->p->buffers[buffer].owner;
    owner_state *o = &d->owners[owner];
    if (o->all)
        return DVT_OK;
    region elements, whole;
    elements_of(d, buffer, &elements);
    all_of(d, owner, &whole);
    if (elements.rank == 0 && elements.offset == 0 && elements.run == whole.run) {
        o->all = true;
        return DVT_OK;
    }
    if (o->count == o->room) {
        uint32_t room = o->room > 0 ? 2 * o->room : 4;
        region *grown = realloc(o->written, room * sizeof *grown);
        if (grown == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
        o->written = grown;
        o->room = room;
    }
    o->written[o->count++] = elements;
    return DVT_OK;
}

/* Copies between the host and a device move all bytes from the first element to the last. */
static bool moves_gaps(const instruction *in)
{
    return in->opcode == OP_COPY && in->device != 0;
}

dvt_status dvt_defined_step(definedness *d, uint32_t at, const operand_use *uses,
                            dvt_error *error)
{
    const instruction *in = &d->p->instructions[at];
    const operand_use *inputs = uses + in->output_count;
    for (uint32_t i = 0; i < in->input_count; i++)
        if (in->inputs[i] != DVT_NONE && inputs[i].reads)
            need(d, in->inputs[i], inputs[i].gaps || moves_gaps(in));
    for (uint32_t i = 0; i < in->output_count; i++)
        if (in->outputs[i] != DVT_NONE && uses[i].reads)
            need(d, in->outputs[i], true);
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < in->output_count; i++) {
        if (in->outputs[i] == DVT_NONE || !uses[i].fills)
            continue;
        if (moves_gaps(in))
            d->owners[d->p->buffers[in->outputs[i]].owner].all = true;
        status = add(d, in->outputs[i], error);
    }
    return status;
}

static int by_instruction(const void *left, const void *right)
{
    const clearing *a = left, *b = right;
    return a->at < b->at ? -1 : a->at > b->at;
}

static void list_clearing(const definedness *d, uint32_t owner)
{
    const buffer_record *b = &d->p->buffers[owner];
    uint64_t begin = 0, end = d->f->extents[owner];
    if (b->base != DVT_NONE)
        begin = d->f->extents[d->p->buffers[b->base].owner];
    if (begin >= end)
        return;
    d->f->clearings[d->f->clearing_count++] = (clearing){b->first, owner, begin, end};
    d->f->cleared += end - begin;
}

/* What devices are sent where they have to clear. */
static dvt_status make_zeros(definedness *d, dvt_error *error)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < d->f->clearing_count; i++) {
        const clearing *c = &d->f->clearings[i];
        if (d->p->buffers[c->buffer].device != 0 && c->end - c->begin > most)
            most = c->end - c->begin;
    }
    if (most == 0)
        return DVT_OK;
    d->f->zeros = calloc(1, (size_t)most);
    return d->f->zeros != NULL ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
}

dvt_status dvt_defined_end(definedness *d, dvt_error *error)
{
    const program *p = d->p;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->output_count; i++) {
        uint32_t owner = p->buffers[p->outputs[i]].owner;
        region whole;
        all_of(d, owner, &whole);
        if (!is_written(d, owner, &whole))
            clear(d, owner);
    }
    for (uint32_t i = 0; i < p->buffer_count; i++)
        count += d->owners[i].clears;
    d->f->clearings = calloc(count + 1u, sizeof *d->f->clearings);
    if (d->f->clearings == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (d->owners[i].clears)
            list_clearing(d, i);
    qsort(d->f->clearings, d->f->clearing_count, sizeof *d->f->clearings, by_instruction);
    return make_zeros(d, error);
}
