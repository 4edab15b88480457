/* A file as its sections, and back: offsets, digests and signature in order. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#define ROOT_AT 80

static const uint8_t MAGIC[8] = {0x89, 'D', 'V', 'T', '\r', '\n', 0x1a, '\n'};

const uint8_t signing_key[32] = {7, 7, 7};
uint8_t public_key[32];
uint64_t chance_state;

uint64_t odd_number(void)
{
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   3,
                                   4,
                                   5,
                                   7,
                                   8,
                                   9,
                                   15,
                                   16,
                                   17,
                                   31,
                                   32,
                                   33,
                                   63,
                                   64,
                                   65,
                                   127,
                                   128,
                                   255,
                                   256,
                                   1000,
                                   4095,
                                   4096,
                                   4097,
                                   65535,
                                   65536,
                                   1u << 20,
                                   1u << 24,
                                   (1u << 24) + 1,
                                   INT32_MAX,
                                   1u << 31,
                                   UINT32_MAX,
                                   1ull << 32,
                                   1ull << 58,
                                   INT64_MAX / 32,
                                   INT64_MAX / 16,
                                   1ull << 62,
                                   INT64_MAX,
                                   1ull << 63,
                                   UINT64_MAX - 1,
                                   UINT64_MAX};
    uint64_t value = odd[below(one_in(2) ? 20 : sizeof odd / sizeof *odd)];
    return one_in(8) ? (uint64_t)0 - value : value;
}

/* ---- bytes ---- */

void bytes_resize(bytes *b, size_t size)
{
    if (size > b->room) {
        b->room = size + size / 2 + 64;
        b->data = realloc(b->data, b->room);
        if (b->data == NULL)
            abort();
    }
    if (size > b->size)
        memset(b->data + b->size, 0, size - b->size);
    b->size = size;
}

void bytes_set(bytes *b, const void *data, size_t size)
{
    b->size = 0;
    bytes_add(b, data, size);
}

void bytes_add(bytes *b, const void *data, size_t size)
{
    bytes_insert(b, b->size, data, size);
}

void bytes_insert(bytes *b, size_t at, const void *data, size_t size)
{
    if (size == 0 || at > b->size)
        return;
    bytes_resize(b, b->size + size);
    memmove(b->data + at + size, b->data + at, b->size - size - at);
    if (data != NULL)
        memcpy(b->data + at, data, size);
    else
        memset(b->data + at, 0, size);
}

void bytes_remove(bytes *b, size_t at, size_t size)
{
    if (at > b->size || size > b->size - at)
        return;
    memmove(b->data + at, b->data + at + size, b->size - at - size);
    b->size -= size;
}

uint64_t number_at(const bytes *b, size_t at, unsigned width)
{
    uint64_t value = 0;
    if (at <= b->size && width <= b->size - at && width > 0)
        memcpy(&value, b->data + at, width);
    return value;
}

void set_number(bytes *b, size_t at, unsigned width, uint64_t value)
{
    if (at <= b->size && width <= b->size - at)
        memcpy(b->data + at, &value, width);
}

/* ---- documents ---- */

bool document_read(const uint8_t *file, size_t size, document *d)
{
    bytes all = {(uint8_t *)(uintptr_t)file, size, size};
    uint64_t count = number_at(&all, 24, 4);
    if (size < HEADER || memcmp(file, MAGIC, 8) != 0 || count > MAX_PARTS ||
        size < HEADER + count * ENTRY)
        return false;
    d->major = (uint16_t)number_at(&all, 8, 2);
    d->minor = (uint16_t)number_at(&all, 10, 2);
    d->features = number_at(&all, 32, 8);
    memcpy(d->target, file + 48, 32);
    for (uint32_t i = 0; i < count; i++) {
        size_t entry = HEADER + i * (size_t)ENTRY;
        uint64_t at = number_at(&all, entry + 8, 8), length = number_at(&all, entry + 16, 8);
        if (at > size || length > size - at)
            return false;
        part *p = document_add(d, (uint32_t)number_at(&all, entry, 4));
        p->required = (uint32_t)number_at(&all, entry + 4, 4);
        bytes_set(&p->body, file + at, (size_t)length);
        memcpy(p->digest, file + entry + 24, 32);
        p->changed = false;
    }
    return true;
}

void document_copy(document *to, const document *from)
{
    to->major = from->major;
    to->minor = from->minor;
    to->features = from->features;
    memcpy(to->target, from->target, sizeof to->target);
    to->damaged = to->patched = false;
    to->count = from->count;
    for (uint32_t i = 0; i < from->count; i++) {
        const part *p = &from->parts[i];
        bytes kept = to->parts[i].body;
        to->parts[i] = *p;
        to->parts[i].body = kept;
        bytes_set(&to->parts[i].body, p->body.data, p->body.size);
    }
}

part *document_part(document *d, uint32_t kind)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (d->parts[i].kind == kind)
            return &d->parts[i];
    return NULL;
}

part *document_add(document *d, uint32_t kind)
{
    part *p = &d->parts[d->count < MAX_PARTS ? d->count++ : MAX_PARTS - 1];
    p->kind = kind;
    p->required = 0;
    p->changed = true;
    p->body.size = 0;
    return p;
}

void document_remove(document *d, uint32_t index)
{
    bytes spare = d->parts[index].body;
    d->count--;
    memmove(&d->parts[index], &d->parts[index + 1], (d->count - index) * sizeof *d->parts);
    d->parts[d->count].body = spare;
}

static size_t aligned(size_t at, uint32_t kind)
{
    size_t unit = kind == DVT_CONSTANTS ? 4096 : 64;
    return (at + unit - 1) / unit * unit;
}

static void write_entry(const part *p, uint16_t minor, uint8_t *entry, size_t at)
{
    uint64_t place[2] = {at, p->body.size};
    memset(entry, 0, ENTRY);
    memcpy(entry, &p->kind, 4);
    memcpy(entry + 4, &p->required, 4);
    memcpy(entry + 8, place, 16);
    if (p->changed)
        dvt_section_digest(p->kind, minor, (span){p->body.data, p->body.size}, entry + 24);
    else
        memcpy(entry + 24, p->digest, 32);
}

static void write_header(const document *d, bytes *file)
{
    uint8_t *h = file->data;
    uint64_t size = file->size, header = HEADER;
    memset(h, 0, HEADER);
    memcpy(h, MAGIC, 8);
    memcpy(h + 8, &d->major, 2);
    memcpy(h + 10, &d->minor, 2);
    memcpy(h + 12, &header, 4);
    memcpy(h + 16, &size, 8);
    memcpy(h + 24, &d->count, 4);
    memcpy(h + 32, &d->features, 8);
    memcpy(h + 48, d->target, 32);
}

static void write_root(bytes *file)
{
    uint64_t count = number_at(file, 24, 4);
    if (file->size < HEADER || count > MAX_PARTS || file->size < HEADER + count * ENTRY)
        return;
    uint8_t root[32];
    memset(file->data + ROOT_AT, 0, 32);
    dvt_sha256(file->data, HEADER + count * ENTRY, root);
    memcpy(file->data + ROOT_AT, root, 32);
}

static size_t lay_out(document *d, bytes *file)
{
    size_t end = HEADER + d->count * (size_t)ENTRY;
    bytes_resize(file, 0);
    bytes_resize(file, end);
    for (uint32_t i = 0; i < d->count; i++) {
        const part *p = &d->parts[i];
        size_t at = aligned(end, p->kind);
        bytes_resize(file, at + p->body.size);
        if (p->body.size > 0)
            memcpy(file->data + at, p->body.data, p->body.size);
        write_entry(p, d->minor, file->data + HEADER + i * (size_t)ENTRY, at);
        end = at + p->body.size;
    }
    write_header(d, file);
    write_root(file);
    return end;
}

static void sign_part(const bytes *file, part *p)
{
    static const char context[] = "dovetail artifact signature v1";
    dvt_file view = {.head = file->data};
    uint8_t message[sizeof context + 32];
    size_t skipped = one_in(8) ? sizeof context : 0; /* as it was before 1.3 */
    memcpy(message, context, sizeof context);
    dvt_file_content_digest(&view, message + sizeof context);
    bytes_resize(&p->body, 96);
    memcpy(p->body.data, public_key, 32);
    dvt_ed25519_sign(signing_key, message + skipped, sizeof message - skipped,
                     p->body.data + 32);
    p->changed = true;
}

void document_write(document *d, bool sign, bytes *file)
{
    part *p = document_part(d, DVT_SIGNATURE);
    if (sign && p == NULL && d->count < MAX_PARTS)
        p = document_add(d, DVT_SIGNATURE);
    lay_out(d, file);
    if (!sign || p == NULL)
        return;
    sign_part(file, p);
    lay_out(d, file);
}

void reseal(bytes *file, bool sections)
{
    uint64_t count = number_at(file, 24, 4);
    if (file->size < HEADER || count > MAX_PARTS || file->size < HEADER + count * ENTRY)
        return;
    for (uint32_t i = 0; sections && i < count; i++) {
        uint8_t *entry = file->data + HEADER + i * (size_t)ENTRY;
        uint64_t place[2];
        memcpy(place, entry + 8, sizeof place);
        if (place[0] <= file->size && place[1] <= file->size - place[0])
            dvt_section_digest((uint32_t)number_at(file, HEADER + i * (size_t)ENTRY, 4),
                               (uint32_t)number_at(file, 10, 2),
                               (span){file->data + place[0], (size_t)place[1]}, entry + 24);
    }
    write_root(file);
}
