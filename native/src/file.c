/* The container: header, section table, sections. See SPEC.md. Every byte is accounted for:
 * sections are sorted, do not overlap, leave no holes, and the padding between them is zero. Of
 * a file, all this is looked at in a private copy, which later readers use too. */
#include "source.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_SIZE  128
#define ENTRY_SIZE   64
#define MAX_SECTIONS 64
#define MAX_ALIGN    4096
#define ROOT_AT      80
#define TREE_MINOR   3 /* since this minor version the constants' digest is a tree */

static const uint8_t MAGIC[8] = {0x89, 'D', 'V', 'T', '\r', '\n', 0x1a, '\n'};

static uint64_t get(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static dvt_status check_version(const uint8_t *h, dvt_error *error)
{
    unsigned major = (unsigned)get(h + 8, 2), minor = (unsigned)get(h + 10, 2);
    if (major != DVT_FORMAT_MAJOR)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "format version %u.%u; this build reads %d.x: use a matching dovetail",
                        major, minor, DVT_FORMAT_MAJOR);
    if (minor > DVT_FORMAT_MINOR)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "format version %u.%u is newer than %d.%d, which this build reads: "
                        "upgrade dovetail",
                        major, minor, DVT_FORMAT_MAJOR, DVT_FORMAT_MINOR);
    return DVT_OK;
}

static bool is_zero(const uint8_t *p, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static dvt_status check_root(dvt_file *file, size_t table, dvt_error *error)
{
    uint8_t head[HEADER_SIZE + MAX_SECTIONS * ENTRY_SIZE];
    memcpy(head, file->head, HEADER_SIZE + table);
    memset(head + ROOT_AT, 0, 32);
    dvt_sha256(head, HEADER_SIZE + table, file->root);
    if (memcmp(file->root, file->head + ROOT_AT, 32) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "the header or section table is damaged (its digest differs)");
    return DVT_OK;
}

static dvt_status check_header(dvt_file *file, uint64_t size, size_t *count, dvt_error *error)
{
    const uint8_t *h = file->head;
    if (memcmp(h, MAGIC, 8) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "not an artifact: no DVT signature");
    dvt_status status = check_version(h, error);
    if (status != DVT_OK)
        return status;
    if (get(h + 12, 4) != HEADER_SIZE || get(h + 28, 4) != 0 || get(h + 40, 8) != 0 ||
        !is_zero(h + 112, 16))
        return dvt_fail(error, DVT_ERROR_MALFORMED, "a reserved field of the header is set");
    if (get(h + 16, 8) != size)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "the file has %llu bytes, its header says %llu: truncated or extended",
                        (unsigned long long)size, (unsigned long long)get(h + 16, 8));
    *count = (size_t)get(h + 24, 4);
    if (*count == 0 || *count > MAX_SECTIONS ||
        size < HEADER_SIZE + *count * (uint64_t)ENTRY_SIZE)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "%zu sections", *count);
    status = check_root(file, *count * ENTRY_SIZE, error);
    if (status != DVT_OK)
        return status;
    file->features = get(h + 32, 8);
    uint64_t unknown = file->features & ~DVT_FEATURES;
    if (unknown != 0)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the artifact needs features (0x%llx) that this build does not know: "
                        "upgrade dovetail",
                        (unsigned long long)unknown);
    return DVT_OK;
}

/* An entry of the table, before what it speaks of has been read. `end` is where the section
 * before it ends. */
static dvt_status check_place(dvt_source *s, const uint8_t *entry, uint64_t *end,
                              dvt_error *error)
{
    uint32_t kind = (uint32_t)get(entry, 4), marks = (uint32_t)get(entry + 4, 4);
    uint64_t offset = get(entry + 8, 8), size = get(entry + 16, 8);
    uint64_t align = kind == DVT_CONSTANTS ? MAX_ALIGN : DVT_ALIGN;
    if (marks > 1 || get(entry + 56, 8) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u: a reserved field is set",
                        kind);
    if (offset % align != 0 || offset < *end || offset - *end >= align || offset > s->size ||
        size > s->size - offset)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u lies outside its place", kind);
    *end = offset + size;
    if (kind != DVT_CONSTANTS)
        return DVT_OK;
    if (s->constants.at != UINT64_MAX)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u is there twice", kind);
    s->constants.at = offset;
    s->constants.size = size;
    memcpy(s->constants.digest, entry + 24, 32);
    s->constants.is_tree = get(s->file.head + 10, 2) >= TREE_MINOR;
    return DVT_OK;
}

static dvt_status check_places(dvt_source *s, size_t count, dvt_error *error)
{
    uint64_t end = HEADER_SIZE + count * ENTRY_SIZE;
    dvt_status status = DVT_OK;
    for (size_t i = 0; status == DVT_OK && i < count; i++)
        status = check_place(s, s->file.head + HEADER_SIZE + i * ENTRY_SIZE, &end, error);
    if (status == DVT_OK && end != s->size)
        status = dvt_fail(error, DVT_ERROR_MALFORMED, "%llu bytes after the last section",
                          (unsigned long long)(s->size - end));
    return status;
}

/* How many bytes of the file the private copy leaves out: its constants, but for what they
 * share with the section behind them of a piece of 64 bytes. */
static uint64_t left_out(const dvt_source *s)
{
    if (s->constants.at == UINT64_MAX)
        return 0;
    uint64_t end = s->constants.at + s->constants.size;
    return end / DVT_ALIGN * DVT_ALIGN - s->constants.at;
}

/* Where a byte of the file that is no constant lies in memory. */
static const uint8_t *place_of(const dvt_source *s, uint64_t offset)
{
    if (s->memory != NULL)
        return s->memory + offset;
    return s->rest + (offset <= s->constants.at ? offset : offset - left_out(s));
}

/* Reads all but the constants. What has been verified of it is not taken from the file again.
 */
static dvt_status read_rest(dvt_source *s, size_t head, dvt_error *error)
{
    uint64_t first = s->constants.at == UINT64_MAX ? s->size : s->constants.at;
    uint64_t skipped = left_out(s), total = s->size - skipped;
    if (total > dvt_default_memory())
        return dvt_fail(error, DVT_ERROR_LIMIT,
                        "%llu bytes beside the constants are too many for this machine",
                        (unsigned long long)total);
    s->rest = aligned_alloc(DVT_ALIGN, ((size_t)total + DVT_ALIGN) / DVT_ALIGN * DVT_ALIGN);
    if (s->rest == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    memcpy(s->rest, s->file.head, head);
    dvt_status status = dvt_source_read(s, head, s->rest + head, (size_t)first - head, error);
    if (status == DVT_OK && total > first)
        status = dvt_source_read(s, first + skipped, s->rest + first, (size_t)(total - first),
                                 error);
    return status;
}

static dvt_status check_kind(dvt_file *file, const uint8_t *entry, span contents,
                             dvt_error *error)
{
    uint32_t kind = (uint32_t)get(entry, 4);
    if (kind == 0 || kind >= DVT_KINDS) {
        if (get(entry + 4, 4) == 0)
            return DVT_OK;
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the artifact needs a section of kind %u that this build does not "
                        "know: upgrade dovetail",
                        kind);
    }
    if (file->sections[kind].data != NULL)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u is there twice", kind);
    file->sections[kind] = contents;
    return DVT_OK;
}

/* The contents of a section, and the padding before it. */
static dvt_status check_section(dvt_source *s, const uint8_t *entry, uint64_t *end,
                                dvt_error *error)
{
    uint32_t kind = (uint32_t)get(entry, 4);
    uint64_t offset = get(entry + 8, 8);
    size_t size = (size_t)get(entry + 16, 8);
    if (!is_zero(place_of(s, *end), (size_t)(offset - *end)))
        return dvt_fail(error, DVT_ERROR_MALFORMED, "padding before section %u is not zero",
                        kind);
    *end = offset + size;
    if (kind == DVT_CONSTANTS) { /* they are looked at when they are needed: source.c */
        s->file.sections[kind] = (span){NULL, size};
        return DVT_OK;
    }
    span contents = {place_of(s, offset), size};
    uint8_t digest[32];
    dvt_sha256(contents.data, size, digest);
    if (memcmp(digest, entry + 24, 32) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "section %u is damaged (its digest differs)", kind);
    return check_kind(&s->file, entry, contents, error);
}

static dvt_status check_sections(dvt_source *s, size_t count, dvt_error *error)
{
    uint64_t end = HEADER_SIZE + count * ENTRY_SIZE;
    dvt_status status = DVT_OK;
    for (size_t i = 0; status == DVT_OK && i < count; i++)
        status = check_section(s, s->file.head + HEADER_SIZE + i * ENTRY_SIZE, &end, error);
    return status;
}

dvt_status dvt_file_verify(dvt_source *s, dvt_error *error)
{
    uint8_t head[HEADER_SIZE + MAX_SECTIONS * ENTRY_SIZE];
    size_t count = 0, size = s->size < sizeof head ? (size_t)s->size : sizeof head;
    if (s->size < HEADER_SIZE)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "not an artifact: only %llu bytes",
                        (unsigned long long)s->size);
    dvt_status status = dvt_source_read(s, 0, head, size, error);
    s->file.head = head;
    if (status == DVT_OK)
        status = check_header(&s->file, s->size, &count, error);
    if (status == DVT_OK)
        status = check_places(s, count, error);
    if (status == DVT_OK && s->memory == NULL)
        status = read_rest(s, HEADER_SIZE + count * ENTRY_SIZE, error);
    s->file.head = s->memory != NULL ? s->memory : s->rest;
    return status == DVT_OK ? check_sections(s, count, error) : status;
}

void dvt_section_digest(uint32_t kind, uint32_t minor, span contents, uint8_t digest[32])
{
    if (kind != DVT_CONSTANTS || minor < TREE_MINOR) {
        dvt_sha256(contents.data, contents.size, digest);
        return;
    }
    sha256 h;
    dvt_sha256_start(&h);
    for (size_t at = 0; at < contents.size; at += DVT_LEAF) {
        size_t left = contents.size - at;
        dvt_sha256(contents.data + at, left < DVT_LEAF ? left : DVT_LEAF, digest);
        dvt_sha256_add(&h, digest, 32);
    }
    dvt_sha256_end(&h, digest);
}

/* The concatenated table entries (kind, marks, size, digest of contents) of all sections but
 * the signature, after the header's version and features. Offsets are left out: adding a
 * signature may move sections, and the digests fix their contents. */
void dvt_file_content_digest(const dvt_file *file, uint8_t digest[32])
{
    uint8_t text[64 + MAX_SECTIONS * 48];
    const uint8_t *h = file->head;
    size_t count = (size_t)get(h + 24, 4), used = 0;
    memcpy(text, h + 8, 4); /* major, minor */
    memcpy(text + 4, h + 32, 8);
    memcpy(text + 12, h + 48, 32); /* target */
    used = 44;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *entry = h + HEADER_SIZE + i * ENTRY_SIZE;
        if (get(entry, 4) == DVT_SIGNATURE)
            continue;
        memcpy(text + used, entry, 8);
        memcpy(text + used + 8, entry + 16, 40);
        used += 48;
    }
    dvt_sha256(text, used, digest);
}
