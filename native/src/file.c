/* The container: header, section table, sections. See SPEC.md. One pass, every byte accounted
 * for: sections are sorted, do not overlap, leave no holes, and the padding between them is
 * zero. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_SIZE  128
#define ENTRY_SIZE   64
#define MAX_SECTIONS 64
#define MAX_ALIGN    4096
#define ROOT_AT      80

static const uint8_t MAGIC[8] = {0x89, 'D', 'V', 'T', '\r', '\n', 0x1a, '\n'};

static uint64_t get(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

dvt_status dvt_file_map(const char *path, dvt_file *file, dvt_error *error)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return dvt_fail(error, DVT_ERROR_IO, "cannot open %.300s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(descriptor);
        return dvt_fail(error, DVT_ERROR_IO, "%.300s is not a regular file", path);
    }
    if (info.st_size < HEADER_SIZE) {
        close(descriptor);
        return dvt_fail(error, DVT_ERROR_MALFORMED, "not an artifact: only %lld bytes",
                        (long long)info.st_size);
    }
    void *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (mapping == MAP_FAILED)
        return dvt_fail(error, DVT_ERROR_IO, "cannot map %.300s: %s", path, strerror(errno));
    file->mapping = mapping;
    file->data = mapping;
    file->size = (size_t)info.st_size;
    return DVT_OK;
}

void dvt_file_unmap(dvt_file *file)
{
    if (file->mapping != NULL)
        munmap(file->mapping, file->size);
    memset(file, 0, sizeof *file);
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
    memcpy(head, file->data, HEADER_SIZE + table);
    memset(head + ROOT_AT, 0, 32);
    dvt_sha256(head, HEADER_SIZE + table, file->root);
    if (memcmp(file->root, file->data + ROOT_AT, 32) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "the header or section table is damaged (its digest differs)");
    return DVT_OK;
}

static dvt_status check_header(dvt_file *file, size_t *count, dvt_error *error)
{
    const uint8_t *h = file->data;
    if (file->size < HEADER_SIZE)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "not an artifact: only %zu bytes",
                        file->size);
    if (memcmp(h, MAGIC, 8) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "not an artifact: no DVT signature");
    dvt_status status = check_version(h, error);
    if (status != DVT_OK)
        return status;
    if (get(h + 12, 4) != HEADER_SIZE || get(h + 28, 4) != 0 || get(h + 40, 8) != 0 ||
        !is_zero(h + 112, 16))
        return dvt_fail(error, DVT_ERROR_MALFORMED, "a reserved field of the header is set");
    if (get(h + 16, 8) != file->size)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "the file has %zu bytes, its header says %llu: truncated or extended",
                        file->size, (unsigned long long)get(h + 16, 8));
    *count = (size_t)get(h + 24, 4);
    if (*count == 0 || *count > MAX_SECTIONS ||
        file->size < HEADER_SIZE + *count * (size_t)ENTRY_SIZE)
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

static dvt_status check_section(dvt_file *file, const uint8_t *entry, size_t *end,
                                uint32_t flags, dvt_error *error)
{
    uint32_t kind = (uint32_t)get(entry, 4), marks = (uint32_t)get(entry + 4, 4);
    uint64_t offset = get(entry + 8, 8), size = get(entry + 16, 8);
    uint64_t align = kind == DVT_CONSTANTS ? MAX_ALIGN : DVT_ALIGN;
    if (marks > 1 || get(entry + 56, 8) != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u: a reserved field is set",
                        kind);
    if (offset % align != 0 || offset < *end || offset - *end >= align || offset > file->size ||
        size > file->size - offset)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u lies outside its place", kind);
    if (!is_zero(file->data + *end, (size_t)offset - *end))
        return dvt_fail(error, DVT_ERROR_MALFORMED, "padding before section %u is not zero",
                        kind);
    *end = (size_t)(offset + size);
    if (kind != DVT_CONSTANTS || (flags & DVT_OPEN_CHECK_CONSTANTS) != 0) {
        uint8_t digest[32];
        dvt_sha256(file->data + offset, (size_t)size, digest);
        if (memcmp(digest, entry + 24, 32) != 0)
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "section %u is damaged (its digest differs)", kind);
    }
    if (kind == 0 || kind >= DVT_KINDS) {
        if (marks & 1)
            return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                            "the artifact needs a section of kind %u that this build does not "
                            "know: upgrade dovetail",
                            kind);
        return DVT_OK;
    }
    if (file->sections[kind].data != NULL)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "section %u is there twice", kind);
    file->sections[kind] = (span){file->data + offset, (size_t)size};
    return DVT_OK;
}

dvt_status dvt_file_verify(dvt_file *file, uint32_t flags, dvt_error *error)
{
    size_t count = 0;
    dvt_status status = check_header(file, &count, error);
    size_t end = HEADER_SIZE + count * ENTRY_SIZE;
    for (size_t i = 0; status == DVT_OK && i < count; i++)
        status =
            check_section(file, file->data + HEADER_SIZE + i * ENTRY_SIZE, &end, flags, error);
    if (status == DVT_OK && end != file->size)
        status = dvt_fail(error, DVT_ERROR_MALFORMED, "%zu bytes after the last section",
                          file->size - end);
    return status;
}

/* The concatenated table entries (kind, marks, size, digest of contents) of all sections but
 * the signature, after the header's version and features. Offsets are left out: adding a
 * signature may move sections, and the digests fix their contents. */
void dvt_file_content_digest(const dvt_file *file, uint8_t digest[32])
{
    uint8_t text[64 + MAX_SECTIONS * 48];
    const uint8_t *h = file->data;
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
