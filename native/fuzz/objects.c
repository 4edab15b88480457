/* ELF objects of a code section: headers, sections, symbols and relocations change; the machine
 * code between them is left as it is, and none of it runs afterwards. */
#include "fuzz.h"

#include <string.h>

typedef struct {
    size_t at, size;
} range;

static const field file_fields[] = {
    {0, 4, D_WIDE, 0},   {4, 1, D_FIXED, 4},   {16, 2, D_FIXED, 5},  {18, 2, D_FIXED, 200},
    {40, 8, D_PLACE, 8}, {58, 2, D_FIXED, 96}, {60, 2, D_FIXED, 20}, {62, 2, D_FIXED, 20}};
static const field section_fields[] = {
    {0, 4, D_FIXED, 64},  {4, 4, D_FIXED, 10},  {8, 8, D_FIXED, 8},
    {24, 8, D_PLACE, 8},  {32, 8, D_LENGTH, 0}, {40, 4, D_FIXED, 12},
    {44, 4, D_FIXED, 12}, {48, 8, D_WIDE, 0},   {56, 8, D_FIXED, 32}};
static const field symbol_fields[] = {{0, 4, D_WIDE, 0},
                                      {4, 1, D_FIXED, 64},
                                      {6, 2, D_FIXED, 12},
                                      {8, 8, D_LENGTH, 0},
                                      {16, 8, D_LENGTH, 0}};
static const field relocation_fields[] = {
    {0, 8, D_LENGTH, 0}, {8, 4, D_FIXED, 12}, {12, 4, D_FIXED, 24}, {16, 8, D_WIDE, 0}};

static bool object_at(const bytes *body, uint32_t index, range *found)
{
    size_t row = 8 + 24 * (size_t)index;
    found->at = (size_t)number_at(body, row + 8, 8);
    found->size = (size_t)number_at(body, row + 16, 8);
    return found->at <= body->size && found->size <= body->size - found->at;
}

/* The row of an object's section table that is of this type, chosen by chance. */
static bool section_of(const bytes *body, range object, uint32_t type, range *found)
{
    uint64_t first = number_at(body, object.at + 40, 8);
    uint64_t count = number_at(body, object.at + 60, 2);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < count && first < object.size; i++) {
        size_t row = object.at + (size_t)first + 64 * (size_t)i;
        if (number_at(body, row + 4, 4) != type || !one_in(++seen))
            continue;
        found->at = object.at + (size_t)number_at(body, row + 24, 8);
        found->size = (size_t)number_at(body, row + 32, 8);
    }
    return seen > 0 && found->at < body->size && found->size <= body->size - found->at;
}

static void change_row(bytes *body, range rows, size_t row, const field *fields, size_t count)
{
    static const document nothing;
    if (row > 0 && rows.size >= row)
        change_field(&nothing, body, rows.at + row * below(rows.size / row),
                     &fields[below(count)]);
}

/* The row of a symbol that the object does not define itself, or all rows. */
static range undefined_symbol(const bytes *body, range rows)
{
    for (size_t at = rows.at + 24; at + 24 <= rows.at + rows.size; at += 24)
        if (number_at(body, at + 6, 2) == 0)
            return (range){at, 24};
    return rows;
}

#define CHANGE(rows, row, fields)                                                              \
    change_row(body, rows, row, fields, sizeof(fields) / sizeof *(fields))

static void change_object(bytes *body, range object)
{
    range rows = {0, 0};
    uint64_t first = number_at(body, object.at + 40, 8);
    uint64_t count = number_at(body, object.at + 60, 2);
    switch (below(8)) {
    case 0:
        CHANGE(object, object.size, file_fields);
        break;
    case 1:
    case 2:
    case 3:
        rows = (range){object.at + (size_t)first, (size_t)count * 64};
        if (first < object.size && rows.size <= object.size - first)
            CHANGE(rows, 64, section_fields);
        break;
    case 4:
    case 5:
        if (section_of(body, object, 2, &rows)) {
            if (one_in(2))
                rows = undefined_symbol(body, rows);
            CHANGE(rows, 24, symbol_fields);
        }
        break;
    default:
        if (section_of(body, object, 4, &rows))
            CHANGE(rows, 24, relocation_fields);
    }
}

bool mutate_code(bytes *body)
{
    uint64_t count = number_at(body, 0, 4);
    range object;
    if (body->size < 8 || count == 0 || count > 4096 || !object_at(body, below(count), &object))
        return false;
    for (uint32_t changes = 1 + below(2); changes > 0; changes--)
        change_object(body, object);
    return true;
}
