/* The format's tables as data: which records a section holds, and what their fields mean. */
#include "fuzz.h"

const table tables[] = {
    {DVT_SIZES,
     "symbols",
     16,
     0,
     4,
     32,
     5,
     0,
     {{0, 4, D_STRING, 0},
      {8, 4, D_INPUT, 0},
      {12, 4, D_FIXED, 4},
      {16, 8, D_WIDE, 0},
      {24, 8, D_WIDE, 0}}},
    {DVT_SIZES, "size words", 16, 8, 8, 16, 2, 0, {{0, 8, D_FIXED, 23}, {8, 8, D_WIDE, 0}}},
    {DVT_BUFFERS,
     "buffers",
     8,
     0,
     4,
     48,
     12,
     0,
     {{0, 4, D_STRING, 0},
      {8, 1, D_FIXED, 7},
      {9, 1, D_FIXED, 7},
      {10, 1, D_BITS, 0},
      {11, 1, D_FIXED, 5},
      {12, 4, D_BUFFER, 0},
      {16, 4, D_DIM, 0},
      {20, 4, D_SIZE, 0},
      {24, 8, D_PLACE, 64},
      {32, 8, D_LENGTH, 0},
      {40, 4, D_FIXED, 13},
      {44, 4, D_DEVICE, 0}}},
    {DVT_BUFFERS, "dims", 8, 4, 4, 4, 1, 0, {{0, 4, D_SIZE, 0}}},
    {DVT_PROGRAM, "inputs", 16, 0, 4, 4, 1, 0, {{0, 4, D_BUFFER, 0}}},
    {DVT_PROGRAM, "outputs", 16, 4, 4, 4, 1, 0, {{0, 4, D_BUFFER, 0}}},
    {DVT_GUARDS, "guards", 8, 0, 4, 8, 2, 0, {{0, 4, D_SIZE, 0}, {4, 4, D_SIZE, 0}}},
    {DVT_KERNELS,
     "kernels",
     8,
     0,
     4,
     24,
     4,
     0,
     {{0, 4, D_STRING, 0}, {8, 4, D_FIXED, 3}, {12, 4, D_FIXED, 2}, {16, 4, D_STRING, 0}}},
    {DVT_HOST_CALLS,
     "host calls",
     8,
     0,
     4,
     16,
     2,
     0,
     {{0, 4, D_STRING, 0}, {8, 4, D_STRING, 0}}},
    {DVT_CODE,
     "objects",
     8,
     0,
     4,
     24,
     4,
     16,
     {{0, 4, D_FIXED, 6}, {4, 4, D_ZERO, 0}, {8, 8, D_PLACE, 16}, {16, 8, D_LENGTH, 0}}},
    {DVT_BLOBS,
     "blobs",
     8,
     0,
     4,
     40,
     6,
     64,
     {{0, 4, D_STRING, 0},
      {8, 4, D_STRING, 0},
      {16, 4, D_DEVICE, 0},
      {20, 4, D_ZERO, 0},
      {24, 8, D_PLACE, 64},
      {32, 8, D_LENGTH, 0}}},
    {DVT_DEVICES,
     "devices",
     24,
     0,
     4,
     16,
     4,
     0,
     {{0, 4, D_TEXT, 0}, {4, 4, D_TEXT, 0}, {8, 4, D_FIXED, 0x10002}, {12, 4, D_FIXED, 3}}},
    {DVT_DEVICES,
     "needs",
     24,
     4,
     4,
     16,
     3,
     0,
     {{0, 4, D_TEXT, 0}, {4, 4, D_ZERO, 0}, {8, 8, D_WIDE, 0}}},
    {DVT_DEVICES,
     "operations",
     24,
     8,
     4,
     32,
     8,
     0,
     {{0, 4, D_DEVICE, 0},
      {4, 4, D_TEXT, 0},
      {8, 4, D_TEXT, 0},
      {12, 4, D_FIXED, 4},
      {16, 4, D_FIXED, 4},
      {20, 4, D_FIXED, 8},
      {24, 4, D_FIXED, 4},
      {28, 4, D_ZERO, 0}}},
    {DVT_DEVICES,
     "arguments",
     24,
     12,
     4,
     16,
     4,
     0,
     {{0, 4, D_TEXT, 0}, {4, 4, D_FIXED, 7}, {8, 4, D_FIXED, 4}, {12, 4, D_FIXED, 4}}},
    {DVT_DEVICES, "text", 24, 16, 4, 1, 1, 0, {{0, 1, D_FIXED, 128}}},
    {DVT_LAYOUTS, "layouts", 8, 0, 4, 8, 2, 0, {{0, 4, D_BUFFER, 0}, {4, 4, D_FIXED, 6}}},
    {DVT_LAYOUTS, "pairs", 8, 4, 4, 8, 2, 0, {{0, 4, D_SIZE, 0}, {4, 4, D_FIXED, 10}}},
};
const size_t table_count = sizeof tables / sizeof *tables;

const field header_fields[] = {
    {0, 8, D_WIDE, 0},  {8, 2, D_FIXED, 3},   {10, 2, D_FIXED, 6}, {12, 4, D_FIXED, 256},
    {16, 8, D_WIDE, 0}, {24, 4, D_FIXED, 66}, {28, 4, D_ZERO, 0},  {32, 8, D_FIXED, 32},
    {40, 8, D_ZERO, 0}, {48, 8, D_WIDE, 0},   {112, 8, D_ZERO, 0}, {120, 8, D_ZERO, 0}};
const size_t header_field_count = sizeof header_fields / sizeof *header_fields;

const field entry_fields[] = {{0, 4, D_FIXED, 20},  {4, 4, D_FIXED, 3}, {8, 8, D_PLACE, 64},
                              {16, 8, D_LENGTH, 0}, {24, 8, D_WIDE, 0}, {56, 8, D_ZERO, 0}};
const size_t entry_field_count = sizeof entry_fields / sizeof *entry_fields;

/* Opcode, index, results, operands, attributes, zero. */
const field instruction_fields[] = {{0, 4, D_FIXED, 7},  {4, 4, D_FIXED, 6},
                                    {8, 4, D_FIXED, 40}, {12, 4, D_FIXED, 6},
                                    {16, 4, D_FIXED, 6}, {20, 4, D_ZERO, 0}};
const size_t instruction_field_count = sizeof instruction_fields / sizeof *instruction_fields;
const field attribute_fields[] = {{0, 4, D_FIXED, 4}, {4, 4, D_SIZE, 0}, {8, 8, D_WIDE, 0}};

static uint32_t rows_at(const table *t, const bytes *body, size_t start)
{
    uint64_t said = number_at(body, t->count_at, t->count_width);
    uint64_t fit = start < body->size ? (body->size - start) / t->record : 0;
    return (uint32_t)(said < fit ? said : fit);
}

static const bytes *body_of(const document *d, uint32_t kind)
{
    const part *p = document_part((document *)(uintptr_t)d, kind);
    return p != NULL ? &p->body : NULL;
}

size_t table_start(const document *d, const table *t)
{
    const bytes *body = body_of(d, t->section);
    size_t at = t->head;
    for (const table *each = tables; body != NULL && each < t; each++)
        if (each->section == t->section)
            at += rows_at(each, body, at) * (size_t)each->record;
    return at;
}

uint32_t table_rows(const document *d, const table *t)
{
    const bytes *body = body_of(d, t->section);
    return body != NULL ? rows_at(t, body, table_start(d, t)) : 0;
}

/* Which section's head counts what an index of a domain points into, and where. */
static const struct {
    uint8_t section, at;
} counted[] = {
    [D_SIZE] = {DVT_SIZES, 4},     [D_SYMBOL] = {DVT_SIZES, 0},  [D_BUFFER] = {DVT_BUFFERS, 0},
    [D_DIM] = {DVT_BUFFERS, 4},    [D_INPUT] = {DVT_PROGRAM, 0}, [D_KERNEL] = {DVT_KERNELS, 0},
    [D_DEVICE] = {DVT_DEVICES, 0}, [D_TEXT] = {DVT_DEVICES, 16},
};

uint64_t domain_limit(const document *d, const field *f, const bytes *body)
{
    const bytes *strings = body_of(d, DVT_STRINGS);
    if (f->domain == D_FIXED)
        return f->limit;
    if (f->domain == D_STRING)
        return strings != NULL ? strings->size : 0;
    if (f->domain == D_PLACE || f->domain == D_LENGTH)
        return body->size;
    if (f->domain < sizeof counted / sizeof *counted && counted[f->domain].section != 0) {
        const bytes *head = body_of(d, counted[f->domain].section);
        return head != NULL ? number_at(head, counted[f->domain].at, 4) : 0;
    }
    return 0;
}

static uint64_t other_number(uint64_t old, uint64_t limit)
{
    switch (below(12)) {
    case 0:
        return limit; /* one past the last */
    case 1:
        return limit - 1;
    case 2:
        return old + 1;
    case 3:
        return old - 1;
    case 4:
        return odd_number();
    case 5:
        return old ^ 1ull << below(64);
    case 6:
        return UINT64_MAX;
    default:
        return limit > 0 ? below(limit) : odd_number();
    }
}

void change_field(const document *d, bytes *body, size_t at, const field *f)
{
    static const uint8_t bits[] = {8, 16, 32, 64, 128, 0, 1, 24, 255};
    uint64_t old = number_at(body, at + f->at, f->width), limit = domain_limit(d, f, body);
    uint64_t value = other_number(old, limit);
    if (f->domain == D_BITS)
        value = bits[below(sizeof bits)];
    if (f->domain == D_PLACE && !one_in(4))
        value = value / f->limit * f->limit;
    if (f->domain == D_ZERO)
        value = odd_number();
    if (f->domain == D_STRING && one_in(2)) {
        set_number(body, at + f->at + 4, 4,
                   other_number(number_at(body, at + f->at + 4, 4), limit < 16 ? limit : 16));
        return;
    }
    set_number(body, at + f->at, f->width, value);
}
