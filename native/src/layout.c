/* Layouts: the tensor that a buffer holds packed or with a halo (SPEC.md, section 16). Nothing
 * is computed by them; those who show a file or read its memory by them find them checked. */
#include "internal.h"

typedef struct {
    uint32_t first, second;
} pair;

static dvt_status malformed(const char *problem, dvt_error *error)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "layouts section: %s", problem);
}

/* What holds for all sizes: sizes and axes exist, the steps along an axis go down to one. */
static bool is_sound(const program *p, const pair *axes, uint32_t rank, const pair *parts,
                     uint32_t count)
{
    uint32_t steps[DVT_MAX_RANK] = {0}; /* of the last part along each axis */
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].first >= rank || parts[i].second == 0)
            return false;
        uint32_t *step = &steps[parts[i].first];
        if (*step != 0 && *step <= parts[i].second)
            return false;
        *step = parts[i].second;
    }
    for (uint32_t i = 0; i < rank; i++)
        if (axes[i].first >= p->size_count || steps[i] != 1)
            return false;
    return true;
}

dvt_status dvt_layouts_decode(const dvt_file *file, program *p, dvt_error *error)
{
    span section = file->sections[DVT_LAYOUTS];
    if (section.data == NULL)
        return DVT_OK;
    /* Sections are aligned. */
    const pair *rows = (const pair *)(const void *)section.data;
    uint64_t pairs = section.size / sizeof *rows, at, left;
    if (section.size % sizeof *rows != 0 || pairs == 0 ||
        (uint64_t)rows->first + rows->second != pairs - 1)
        return malformed("of another size than it says", error);
    at = 1 + (uint64_t)rows->first;
    left = rows->second;
    for (uint32_t i = 0; i < rows->first; i++) {
        uint32_t index = rows[i + 1].first, rank = rows[i + 1].second;
        if (index >= p->buffer_count || (i > 0 && index <= rows[i].first))
            return malformed("not in the order of buffers", error);
        buffer_record *b = &p->buffers[index];
        if (rank > DVT_MAX_RANK || rank + b->rank > left)
            return malformed("a rank is out of range", error);
        if (!is_sound(p, rows + at, rank, rows + at + rank, b->rank))
            return malformed("a layout gives elements no place", error);
        b->layout = (const uint32_t *)(rows + at);
        b->layout_rank = (uint8_t)rank;
        at += rank + b->rank;
        left -= rank + b->rank;
    }
    return left == 0 ? DVT_OK : malformed("has bytes left over", error);
}

/* Each part fills a step of the one around it; the first of each axis has room for all. */
static bool has_room(const frame *f, const pair *axes, const pair *parts,
                     const dvt_tensor *memory)
{
    int64_t steps[DVT_MAX_RANK] = {0};
    for (int32_t i = 0; i < memory->ndim; i++) {
        uint32_t axis = parts[i].first;
        int64_t held, needed, step = parts[i].second, size = f->sizes[axes[axis].first];
        if (__builtin_mul_overflow(memory->shape[i], step, &held))
            return false;
        if (steps[axis] != 0 && held != steps[axis])
            return false;
        if (steps[axis] == 0 &&
            (size < 0 || __builtin_add_overflow(size, (int64_t)axes[axis].second, &needed) ||
             held < needed))
            return false;
        steps[axis] = step;
    }
    return true;
}

/* Whether each axis is one part without padding: such a tensor may repeat elements. */
static bool is_plain(const frame *f, const pair *axes, uint32_t rank, const pair *parts,
                     const dvt_tensor *memory)
{
    bool plain = (uint32_t)memory->ndim == rank;
    for (int32_t i = 0; plain && i < memory->ndim; i++)
        plain = memory->shape[i] == f->sizes[axes[parts[i].first].first];
    return plain;
}

/* No two positions of the memory are one: in the order of strides, each goes beyond what those
 * before it reach. Their products fit, as reach() in frame.c has seen. */
static bool is_apart(const dvt_tensor *memory)
{
    bool done[DVT_MAX_RANK] = {false};
    int64_t reach = 1;
    if (dvt_is_empty(memory))
        return true;
    for (int32_t n = 0; n < memory->ndim; n++) {
        int32_t next = -1;
        for (int32_t i = 0; i < memory->ndim; i++)
            if (!done[i] && (next < 0 || memory->strides[i] < memory->strides[next]))
                next = i;
        done[next] = true;
        if (memory->shape[next] == 1)
            continue;
        if (memory->strides[next] < reach)
            return false;
        reach = memory->strides[next] * memory->shape[next];
    }
    return true;
}

static int64_t elements_of(const frame *f, const pair *axes, uint32_t rank)
{
    int64_t count = 1; /* no more than memory has */
    for (uint32_t i = 0; i < rank; i++)
        count *= f->sizes[axes[i].first];
    return count;
}

dvt_status dvt_layout_bind(const program *p, frame *f, uint32_t index, dvt_error *error)
{
    const buffer_record *b = &p->buffers[index];
    const dvt_tensor *memory = &f->tensors[index];
    const pair *axes = (const pair *)b->layout, *parts = axes + b->layout_rank;
    if (b->layout == NULL)
        return DVT_OK;
    if (!has_room(f, axes, parts, memory) ||
        (!is_plain(f, axes, b->layout_rank, parts, memory) && !is_apart(memory)))
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "buffer '%.*s' has not the memory that its layout needs",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    if (b->kind == KIND_TEMPORARY && b->base == DVT_NONE)
        f->padding +=
            (uint64_t)(dvt_numel(memory) - elements_of(f, axes, b->layout_rank)) * b->item;
    return DVT_OK;
}
