/* Where the temporaries of a frame lie: one arena a device, planned by when each is needed. */
#include "call.h"

#include <stdlib.h>

/* The memory of the host's arena; a plug-in's is allocated when the device's turn comes. */
static dvt_status take_arena(const dvt_artifact *a, frame *f, uint32_t device,
                             const dvt_memory *memory, uint64_t placed, dvt_error *error)
{
    uint64_t total = f->call_bytes + f->bytes;
    dvt_status status =
        dvt_charge_memory(a, &total, memory->peak + placed, "temporaries", error);
    if (status != DVT_OK)
        return status;
    f->bytes += memory->peak + placed;
    if (device != 0) {
        dvt_devices_reserve(f, device, memory->peak);
        return DVT_OK;
    }
    f->memory = *memory;
    if (memory->peak == 0)
        return DVT_OK;
    f->arena = dvt_allocate(&a->allocator, memory->peak);
    if (f->arena == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "no memory for an arena of %llu bytes",
                        (unsigned long long)memory->peak);
    return DVT_OK;
}

/* ---- strands ---- */

/* Bytes by which strands may make an arena larger, beside its own size once more. */
#define SLACK (1u << 20)

typedef struct {
    const frame *f;
    const lifetime *lives;
    size_t count, strands; /* of all stretches */
    lifetime *wide;        /* the strands, then the lives, by when others may run */
    lifetime *inner;       /* the lives of one strand */
    uint32_t *strand;      /* of a life, among all; DVT_NONE: it lives on outside */
} strand_plan;

/* A life within a stretch is its strand's, whatever runs meanwhile; any other that meets a
 * stretch lasts as long as that. */
static uint32_t strand_of(const frame *f, lifetime *life)
{
    uint32_t before = 0;
    for (uint32_t n = 0; n < f->stretch_count; n++) {
        const strand_stretch *s = &f->stretches[n];
        if (life->first >= s->begin && life->last < s->end)
            return before + f->strand_of[life->first];
        if (life->last >= s->begin && life->first < s->end) {
            life->first = life->first < s->begin ? life->first : s->begin;
            life->last = life->last >= s->end ? life->last : s->end - 1;
        }
        before += s->strands;
    }
    return DVT_NONE;
}

static size_t list_inner(strand_plan *p, uint32_t strand)
{
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++)
        if (p->strand[i] == strand)
            p->inner[count++] = p->lives[i];
    return count;
}

/* A piece of memory for each strand, for as long as its stretch; of the lives, those outside.
 */
static dvt_status widen(strand_plan *p, dvt_error *error)
{
    const frame *f = p->f;
    dvt_status status = DVT_OK;
    for (size_t i = 0; i < p->count; i++) {
        lifetime *life = &p->wide[p->strands + i];
        *life = p->lives[i];
        p->strand[i] = strand_of(f, life);
        if (p->strand[i] != DVT_NONE)
            life->size = 0;
    }
    uint32_t at = 0;
    for (uint32_t n = 0; n < f->stretch_count; n++)
        for (uint32_t i = 0; status == DVT_OK && i < f->stretches[n].strands; i++, at++) {
            dvt_memory inside;
            status = dvt_plan(p->inner, list_inner(p, at), &inside, error);
            p->wide[at] = (lifetime){status == DVT_OK ? inside.peak : 0, f->stretches[n].begin,
                                     f->stretches[n].end - 1, 0};
        }
    return status;
}

/* Takes over where each life lies: in its strand's memory, or for itself. */
static dvt_status settle(strand_plan *p, lifetime *lives, dvt_error *error)
{
    dvt_status status = DVT_OK;
    for (uint32_t at = 0; status == DVT_OK && at < p->strands; at++) {
        dvt_memory inside;
        size_t next = 0;
        status = dvt_plan(p->inner, list_inner(p, at), &inside, error);
        for (size_t i = 0; i < p->count; i++)
            if (p->strand[i] == at)
                lives[i].offset = p->wide[at].offset + p->inner[next++].offset;
    }
    for (size_t i = 0; i < p->count; i++)
        if (p->strand[i] == DVT_NONE)
            lives[i].offset = p->wide[p->strands + i].offset;
    return status;
}

/* A plan in which no two strands share memory, where that takes little more than one in which
 * each instruction ends before the next: else there are no strands. */
static dvt_status plan_strands(const dvt_artifact *a, frame *f, lifetime *lives, size_t count,
                               dvt_memory *memory, dvt_error *error)
{
    strand_plan p = {.f = f, .lives = lives, .count = count};
    dvt_memory wider;
    for (uint32_t n = 0; n < f->stretch_count; n++)
        p.strands += f->stretches[n].strands;
    p.wide = calloc(count + p.strands, sizeof *p.wide);
    p.inner = calloc(count + 1, sizeof *p.inner);
    p.strand = calloc(count + 1, sizeof *p.strand);
    bool is_there = p.wide != NULL && p.inner != NULL && p.strand != NULL;
    dvt_status status =
        is_there ? widen(&p, error) : dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    if (status == DVT_OK)
        status = dvt_plan(p.wide, count + p.strands, &wider, error);
    uint64_t taken = f->call_bytes + f->bytes;
    if (status == DVT_OK && wider.peak <= 2 * memory->peak + SLACK &&
        taken + wider.peak <= a->max_memory) {
        memory->peak = wider.peak;
        status = settle(&p, lives, error);
    } else {
        f->stretch_count = 0;
    }
    free(p.wide);
    free(p.inner);
    free(p.strand);
    return status;
}

/* ---- an arena ---- */

/* One arena a device. */
dvt_status dvt_arena_plan(const dvt_artifact *a, frame *f, uint32_t device, dvt_error *error)
{
    const program *p = &a->program;
    lifetime *lives = calloc(p->buffer_count + 1u, sizeof *lives);
    uint32_t *slots = calloc(p->buffer_count + 1u, sizeof *slots);
    dvt_status status = DVT_OK;
    uint32_t count = 0;
    uint64_t placed = 0;
    if (lives == NULL || slots == NULL)
        status = dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; status == DVT_OK && i < p->buffer_count; i++) {
        const buffer_record *b = &p->buffers[i];
        if (b->kind != KIND_TEMPORARY || b->device != device)
            continue;
        if (b->root == i) {
            slots[i] = count;
            lives[count++] = (lifetime){0, b->life_first, b->life_last, 0};
            if (b->life_first == DVT_NONE) /* never touched: needs nothing */
                lives[count - 1] = (lifetime){0, 0, 0, 0};
        }
        uint64_t bytes = (f->extents[i] + DVT_ALIGN - 1) / DVT_ALIGN * DVT_ALIGN;
        if (p->buffers[b->root].is_placed) /* counted, but it lies elsewhere */
            placed += bytes;
        else if (bytes > lives[slots[b->root]].size)
            lives[slots[b->root]].size = bytes;
    }
    dvt_memory memory;
    if (status == DVT_OK)
        status = dvt_plan(lives, count, &memory, error);
    if (status == DVT_OK && device == 0 && f->stretch_count > 0)
        status = plan_strands(a, f, lives, count, &memory, error);
    if (status == DVT_OK)
        status = take_arena(a, f, device, &memory, placed, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->buffer_count; i++) {
        const buffer_record *b = &p->buffers[i];
        if (p->buffers[b->root].kind != KIND_TEMPORARY || b->device != device)
            continue;
        uint64_t start = p->buffers[b->root].is_placed ? 0 : lives[slots[b->root]].offset;
        uint64_t offset = start + f->offsets[i];
        if (device != 0)
            f->tensors[i].byte_offset = offset;
        else /* any address will do where all temporaries are empty */
            f->tensors[i].data = f->arena == NULL ? (void *)f : f->arena + offset;
    }
    free(lives);
    free(slots);
    return status;
}
