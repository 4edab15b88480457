/* Inputs from seeds: fields changed by what they mean, records and sections added, removed,
 * moved and taken from other seeds; the file around them is laid out anew. */
#include "fuzz.h"

#include <string.h>

/* ---- records ---- */

static void add_to_count(bytes *body, const table *t, int step)
{
    uint64_t count = number_at(body, t->count_at, t->count_width);
    set_number(body, t->count_at, t->count_width, count + (uint64_t)(int64_t)step);
}

/* Where bytes follow the records, they move by a whole unit, and so do the offsets. */
static void shift_data(bytes *body, const table *t, size_t start, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint8_t n = 0; n < t->field_count; n++)
            if (t->fields[n].domain == D_PLACE) {
                size_t at = start + i * (size_t)t->record + t->fields[n].at;
                set_number(body, at, 8, number_at(body, at, 8) + 64);
            }
}

static void insert_row(document *d, bytes *body, const table *t, size_t start, uint32_t rows)
{
    uint8_t copy[64] = {0};
    uint32_t to = below(rows + 1u);
    if (rows > 0 && t->record <= sizeof copy && !one_in(4))
        memcpy(copy, body->data + start + below(rows) * (size_t)t->record, t->record);
    bytes_insert(body, start + to * (size_t)t->record, copy, t->record);
    if (t->data_unit != 0) {
        bytes_insert(body, start + (rows + 1u) * (size_t)t->record, NULL, 64u - t->record);
        shift_data(body, t, start, rows + 1u);
    }
    if (!one_in(16))
        add_to_count(body, t, 1);
    if (one_in(2))
        change_field(d, body, start + to * (size_t)t->record,
                     &t->fields[below(t->field_count)]);
}

static void remove_row(bytes *body, const table *t, size_t start, uint32_t rows)
{
    size_t at = start + below(rows) * (size_t)t->record;
    if (t->data_unit == 0)
        bytes_remove(body, at, t->record);
    else /* the rest stays where it is */
        memmove(body->data + at, body->data + at + t->record,
                start + rows * (size_t)t->record - at - t->record);
    if (!one_in(16))
        add_to_count(body, t, -1);
}

static void swap_rows(bytes *body, const table *t, size_t start, uint32_t rows)
{
    uint8_t *a = body->data + start + below(rows) * (size_t)t->record;
    uint8_t *b = body->data + start + below(rows) * (size_t)t->record;
    for (uint16_t i = 0; i < t->record; i++) {
        uint8_t kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

static void change_table(document *d, bytes *body, const table *t)
{
    size_t start = table_start(d, t);
    uint32_t rows = table_rows(d, t), what = below(20);
    if (start > body->size)
        return;
    if (what == 0 || rows == 0)
        insert_row(d, body, t, start, rows);
    else if (what == 1)
        remove_row(body, t, start, rows);
    else if (what == 2)
        swap_rows(body, t, start, rows);
    else if (what == 3)
        set_number(body, t->count_at, t->count_width, odd_number());
    else
        change_field(d, body, start + below(rows) * (size_t)t->record,
                     &t->fields[below(t->field_count)]);
}

/* ---- size programs ---- */

/* More on the stack than it holds, and all of it added up. */
static void deepen_stack(bytes *body, const table *t, size_t at)
{
    static const int64_t push[2] = {DVT_SIZE_PUSH, 1}, add[2] = {DVT_SIZE_ADD, 0};
    int depth = DVT_SIZE_STACK - 1 + (int)below(4);
    for (int i = 0; i < depth; i++)
        bytes_insert(body, at, add, sizeof add);
    for (int i = 0; i < depth; i++)
        bytes_insert(body, at, push, sizeof push);
    add_to_count(body, t, 2 * depth);
}

/* A binary operation more on some size, so that the stack stays even. */
static void extend_size(document *d, bytes *body, const table *t)
{
    int64_t words[4] = {(int64_t)(one_in(2) ? DVT_SIZE_LOAD : DVT_SIZE_PUSH), 0,
                        DVT_SIZE_ADD + (int64_t)below(21), 0};
    size_t start = table_start(d, t);
    uint32_t rows = table_rows(d, t);
    const field symbol = {0, 0, D_SYMBOL, 0};
    words[1] = words[0] == DVT_SIZE_LOAD ? (int64_t)below(domain_limit(d, &symbol, body))
                                         : (int64_t)(one_in(2) ? below(4) : odd_number());
    if (one_in(8))
        words[1] = -1;
    for (uint32_t i = 0, tries = 0; rows > 0 && tries < 16; tries++) {
        i = below(rows);
        if (number_at(body, start + i * 16u, 8) != DVT_SIZE_STORE)
            continue;
        if (one_in(100))
            deepen_stack(body, t, start + i * 16u);
        bytes_insert(body, start + i * 16u, words, sizeof words);
        add_to_count(body, t, 2);
        return;
    }
}

static void change_size(document *d, bytes *body, const table *t)
{
    size_t start = table_start(d, t);
    uint32_t rows = table_rows(d, t);
    if (rows == 0 || one_in(4)) {
        extend_size(d, body, t);
        return;
    }
    size_t at = start + below(rows) * 16u;
    uint64_t opcode = number_at(body, at, 8);
    const field symbol = {8, 8, D_SYMBOL, 0};
    if (opcode == DVT_SIZE_PUSH)
        set_number(body, at + 8, 8, one_in(3) ? odd_number() : below(9));
    else if (opcode == DVT_SIZE_LOAD)
        change_field(d, body, at, &symbol);
    else if (opcode != DVT_SIZE_STORE)
        set_number(body, at, 8, DVT_SIZE_ADD + below(21));
}

/* ---- instructions ---- */

typedef struct {
    size_t at, size;
} instruction_place;

static size_t instruction_size(const bytes *body, size_t at)
{
    return 24 + 4 * (size_t)(number_at(body, at + 8, 4) + number_at(body, at + 12, 4)) +
           16 * (size_t)number_at(body, at + 16, 4);
}

static instruction_place pick_instruction(const document *d, const bytes *body)
{
    size_t at = 16 + 4 * (size_t)(number_at(body, 0, 4) + number_at(body, 4, 4));
    uint32_t count = (uint32_t)number_at(body, 8, 4), seen = 0;
    instruction_place found = {0, 0};
    (void)d;
    for (uint32_t i = 0; i < count && at < body->size; i++) {
        size_t size = instruction_size(body, at);
        if (size > body->size - at)
            break;
        if (one_in(++seen))
            found = (instruction_place){at, size};
        at += size;
    }
    return found;
}

static void change_operand(document *d, bytes *body, instruction_place in)
{
    const field operand = {0, 4, D_BUFFER, 0};
    uint32_t outputs = (uint32_t)number_at(body, in.at + 8, 4);
    uint32_t inputs = (uint32_t)number_at(body, in.at + 12, 4), n = below(outputs + inputs);
    bool output = n < outputs;
    size_t count_at = in.at + (output ? 8 : 12), place = in.at + 24 + 4 * (size_t)n;
    if (outputs + inputs == 0 || one_in(8)) {
        bytes_insert(body, place, NULL, 4);
        change_field(d, body, place, &operand);
        set_number(body, count_at, 4, number_at(body, count_at, 4) + 1);
    } else if (one_in(8)) {
        bytes_remove(body, place, 4);
        set_number(body, count_at, 4, number_at(body, count_at, 4) - 1);
    } else {
        change_field(d, body, place, &operand);
    }
}

static void change_attribute(document *d, bytes *body, instruction_place in)
{
    uint32_t count = (uint32_t)number_at(body, in.at + 16, 4);
    size_t first = in.at + in.size - 16 * (size_t)count;
    if (count == 0 || one_in(8)) {
        uint8_t made[16] = {0};
        bytes_insert(body, first, made, sizeof made);
        set_number(body, in.at + 16, 4, count + 1u);
        change_field(d, body, first, &attribute_fields[below(3)]);
    } else if (one_in(8)) {
        bytes_remove(body, first, 16);
        set_number(body, in.at + 16, 4, count - 1u);
    } else {
        change_field(d, body, first + 16 * (size_t)below(count), &attribute_fields[below(3)]);
    }
}

static void copy_instruction(bytes *body, instruction_place from, instruction_place to)
{
    static bytes copy;
    bytes_set(&copy, body->data + from.at, from.size);
    bytes_insert(body, to.at, copy.data, copy.size);
    set_number(body, 8, 4, number_at(body, 8, 4) + 1);
}

static void change_instruction(document *d, bytes *body)
{
    instruction_place in = pick_instruction(d, body);
    if (in.size == 0)
        return;
    switch (below(12)) {
    case 0:
        copy_instruction(body, in, pick_instruction(d, body));
        break;
    case 1:
        bytes_remove(body, in.at, in.size);
        set_number(body, 8, 4, number_at(body, 8, 4) - 1);
        break;
    case 2: /* it goes elsewhere */
        copy_instruction(body, in, pick_instruction(d, body));
        in = pick_instruction(d, body);
        bytes_remove(body, in.at, in.size);
        set_number(body, 8, 4, number_at(body, 8, 4) - 1);
        break;
    case 3:
    case 4:
        change_field(d, body, in.at, &instruction_fields[below(instruction_field_count)]);
        break;
    case 5:
    case 6:
        change_attribute(d, body, in);
        break;
    default:
        change_operand(d, body, in);
    }
}

/* ---- bytes and sections ---- */

static void change_bytes(bytes *body)
{
    if (body->size == 0) {
        bytes_resize(body, 1 + below(64));
        return;
    }
    size_t at = below(body->size), length = 1 + below(16);
    if (length > body->size - at)
        length = body->size - at;
    switch (below(6)) {
    case 0:
        body->data[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        body->data[at] = (uint8_t)odd_number();
        break;
    case 2:
        set_number(body, at / 4 * 4, 4, odd_number());
        break;
    case 3:
        bytes_remove(body, at, length);
        break;
    case 4:
        bytes_insert(body, at, NULL, length);
        break;
    default:
        memmove(body->data + below(body->size - length + 1), body->data + at, length);
    }
}

static void resize_part(bytes *body)
{
    size_t size = one_in(2) ? below(body->size + 1) : body->size + 1 + below(80);
    bytes_resize(body, one_in(4) ? below(body->size < 9 ? body->size + 1 : 9) : size);
}

static void take_part(document *d)
{
    const document *other = &seeds[below(seed_count)].parts;
    const part *from = &other->parts[below(other->count)];
    part *to = document_part(d, from->kind);
    if (to == NULL || one_in(16)) {
        if (d->count == MAX_PARTS)
            return;
        to = document_add(d, from->kind);
        to->required = from->required;
    }
    bytes_set(&to->body, from->body.data, from->body.size);
    to->changed = true;
}

static void change_parts(document *d)
{
    uint32_t index = below(d->count);
    part *p = &d->parts[index];
    switch (below(6)) {
    case 0:
        document_remove(d, index);
        break;
    case 1:
        p->kind = below(18);
        break;
    case 2:
        p->required = below(3);
        break;
    case 3: {
        part *other = &d->parts[below(d->count)], kept = *other;
        *other = *p;
        *p = kept;
        break;
    }
    default:
        take_part(d);
    }
}

static void change_document(document *d)
{
    if (one_in(4))
        d->features ^= 1ull << below(one_in(8) ? 64 : 4);
    else if (one_in(4))
        d->minor = (uint16_t)below(7);
    else
        d->target[below(32)] ^= 1;
}

/* One of the tables of a section, or (NULL) none. */
static const table *pick_table(uint32_t kind)
{
    const table *found = NULL;
    uint32_t seen = 0;
    for (size_t i = 0; i < table_count; i++)
        if (tables[i].section == kind && one_in(++seen))
            found = &tables[i];
    return found;
}

static void change_part(document *d, part *p)
{
    const table *t = pick_table(p->kind);
    p->changed = true;
    d->damaged = d->damaged || (p->kind != DVT_MANIFEST && p->kind != DVT_DEBUG);
    if (one_in(24))
        change_bytes(&p->body);
    else if (one_in(40))
        resize_part(&p->body);
    else if (p->kind == DVT_KERNEL_IR && mutate_kernel_ir(&p->body))
        return;
    else if (p->kind == DVT_CODE && !one_in(6) && mutate_code(&p->body))
        return;
    else if (p->kind == DVT_PROGRAM && !one_in(5))
        change_instruction(d, &p->body);
    else if (p->kind == DVT_SIZES && !one_in(3))
        change_size(d, &p->body, &tables[1]);
    else if (t != NULL)
        change_table(d, &p->body, t);
    else
        change_bytes(&p->body);
}

/* Sections that decide what runs are changed more often than those that are only carried. */
static part *pick_part(document *d)
{
    for (uint32_t tries = 0; tries < 8; tries++) {
        part *p = &d->parts[below(d->count)];
        bool carried = p->kind == DVT_MANIFEST || p->kind == DVT_DEBUG ||
                       p->kind == DVT_STRINGS || p->kind == DVT_CONSTANTS ||
                       p->kind == DVT_SIGNATURE;
        if (!carried || one_in(8))
            return p;
    }
    return &d->parts[below(d->count)];
}

/* ---- the file ---- */

static void change_file(document *d, bytes *file)
{
    uint64_t count = number_at(file, 24, 4);
    size_t entry = HEADER + below(count) * (size_t)ENTRY;
    uint32_t what = below(8);
    d->damaged = d->patched = true;
    if (what <= 1)
        change_field(d, file, 0, &header_fields[below(header_field_count)]);
    else if (what <= 4)
        change_field(d, file, entry, &entry_fields[below(entry_field_count)]);
    else if (what == 5) {
        bytes_resize(file, one_in(2) ? below(file->size + 128) : file->size + 1 + below(64));
        if (one_in(2))
            set_number(file, 16, 8, file->size);
    } else if (what == 6)
        file->data[below(file->size)] ^= (uint8_t)(1u << below(8));
    else /* somewhere in the gaps that alignment makes */
        file->data[file->size - 1 - below(file->size < 4096 ? file->size : 4096)] ^= 1;
    if (!one_in(4))
        reseal(file, one_in(2));
}

void make_input(const seed *from, document *d, bytes *file)
{
    document_copy(d, &from->parts);
    bool whole = one_in(200);
    uint32_t changes = whole ? 0 : 1 + below(one_in(3) ? 6 : 2);
    for (uint32_t i = 0; i < changes && d->count > 0; i++) {
        uint32_t what = below(40);
        if (what == 0)
            change_document(d);
        else if (what == 1)
            change_parts(d);
        else
            change_part(d, pick_part(d));
        d->damaged = d->damaged || what <= 1;
    }
    document_write(d, one_in(24), file);
    if (!whole && one_in(12))
        change_file(d, file);
}
