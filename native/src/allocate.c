/* Where large memory comes from: the caller's allocator, or the C library. */
#include "call.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

dvt_status dvt_allocator_set(dvt_allocator *known, const dvt_allocator *given, dvt_error *error)
{
    if (given == NULL)
        return DVT_OK;
    size_t least = offsetof(dvt_allocator, release) + sizeof given->release;
    if (given->struct_size < least || given->allocate == NULL || given->release == NULL)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "dvt_allocator: set struct_size, allocate and release");
    memcpy(known, given,
           given->struct_size < sizeof *known ? given->struct_size : sizeof *known);
    return DVT_OK;
}

/* Memory that does not start where it should is given back: kernels rely on it. */
static void *ask(const dvt_allocator *from, size_t bytes)
{
    void *memory = from->allocate(from->context, bytes, DVT_ALIGN);
    if (memory == NULL || (uintptr_t)memory % DVT_ALIGN == 0)
        return memory;
    from->release(from->context, memory, bytes, DVT_ALIGN);
    return NULL;
}

static size_t whole_lines(uint64_t bytes)
{
    return (size_t)((bytes + DVT_ALIGN) / DVT_ALIGN * DVT_ALIGN);
}

void *dvt_allocate(const dvt_allocator *from, uint64_t bytes)
{
    if (bytes > INT64_MAX / 2)
        return NULL;
    return from->allocate != NULL ? ask(from, whole_lines(bytes))
                                  : aligned_alloc(DVT_ALIGN, whole_lines(bytes));
}

void dvt_release(const dvt_allocator *from, void *memory, uint64_t bytes)
{
    if (memory == NULL)
        return;
    if (from->allocate != NULL)
        from->release(from->context, memory, whole_lines(bytes), DVT_ALIGN);
    else
        free(memory);
}

/* ---- outputs: one block of memory, freed by its deleter ---- */

static void delete_plain(dvt_managed *self)
{
    free(self);
}

/* A block of the caller's allocator says at its end how to give it back. */
typedef struct {
    dvt_allocator from;
    uint64_t bytes;
} owner_note;

static void delete_owned(dvt_managed *self)
{
    owner_note note = *(const owner_note *)self->manager_ctx;
    dvt_release(&note.from, self, note.bytes);
}

dvt_managed *dvt_new_output(const dvt_allocator *from, const dvt_tensor *like, uint64_t bytes)
{
    size_t rank = (size_t)like->ndim, head = sizeof(dvt_managed) + 16 * rank;
    bool owned = from->allocate != NULL;
    if (bytes >= INT64_MAX / 4)
        return NULL;
    uint64_t tail = owned ? sizeof(owner_note) : 0, whole = head + tail + bytes + DVT_ALIGN;
    /* Plain malloc, aligned by hand: aligned_alloc has no fast path for small blocks. */
    dvt_managed *m = owned ? dvt_allocate(from, whole) : malloc((size_t)whole);
    if (m == NULL)
        return NULL;
    memset(m, 0, sizeof *m);
    m->version.major = 1;
    m->deleter = owned ? delete_owned : delete_plain;
    m->tensor = *like;
    m->tensor.shape = (int64_t *)(void *)(m + 1);
    m->tensor.strides = m->tensor.shape + rank;
    if (rank > 0) {
        memcpy(m->tensor.shape, like->shape, 8 * rank);
        memcpy(m->tensor.strides, like->strides, 8 * rank);
    }
    if (owned) {
        m->manager_ctx = (char *)m + head;
        *(owner_note *)m->manager_ctx = (owner_note){*from, whole};
        head += sizeof(owner_note);
    }
    uintptr_t start = (uintptr_t)m + head;
    m->tensor.data = (char *)m + head + (DVT_ALIGN - start % DVT_ALIGN) % DVT_ALIGN;
    return m;
}
