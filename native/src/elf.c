/* Loads native code: ELF relocatable objects for x86-64 and AArch64, whatever the operating
 * system.
 *
 * The code section of a file holds objects for several processors (x86-64-v1 to v4-bf16,
 * ARMv8-A); those for the best that this machine can run are taken, one after the other: each
 * is loaded on pages of its own and refers to no other. Only code and read-only data are
 * loaded, only relocations applied that do not depend on where that is, and no page is ever
 * writable and executable at one time. */
#include "internal.h"
#include "processor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_OBJECTS   4096
#define MAX_SECTIONS  4096
#define SHT_PROGBITS  1
#define SHT_SYMTAB    2
#define SHT_RELA      4
#define SHT_NOBITS    8
#define SHT_UNWIND    0x70000001u
#define SHF_WRITE     1u
#define SHF_ALLOC     2u
#define SHF_EXECINSTR 4u
#define STB_GLOBAL    1u
#define STT_FUNC      2u

typedef struct {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
} elf_header;

typedef struct {
    uint32_t name, type;
    uint64_t flags, addr, offset, size;
    uint32_t link, info;
    uint64_t addralign, entsize;
} elf_section;

typedef struct {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
} elf_symbol;

typedef struct {
    uint64_t offset, info;
    int64_t addend;
} elf_rela;

struct dvt_code {
    unsigned char *memory; /* code first, then data */
    size_t size, code_size;
    span object;
    const elf_section *sections;
    uint32_t section_count;
    uint64_t *places; /* where each section lies in memory; UINT64_MAX: not loaded */
    const elf_symbol *symbols;
    size_t symbol_count;
    const char *names;
    size_t names_size;
    size_t stubs; /* where calls to functions outside start */
    dvt_code *next;
};

/* What loaded code may call: nothing that touches files, memory maps or the process. */
static const struct {
    const char *name;
    void *(*copy)(void *, const void *, size_t);
    void *(*fill)(void *, int, size_t);
} imports[] = {{"memcpy", memcpy, NULL}, {"memmove", memmove, NULL}, {"memset", NULL, memset}};
#define IMPORTS (sizeof imports / sizeof *imports)

static dvt_status bad(dvt_error *error, const char *problem)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "code section: %s", problem);
}

/* A row of the section: processor, zero, offset, size. */
typedef struct {
    uint32_t level; /* of this machine's kind; what is of another is of no level that is met */
    span object;
} row;

static dvt_status read_row(span section, uint32_t index, row *r, dvt_error *error)
{
    uint32_t processor;
    uint64_t offset, size;
    const uint8_t *at = section.data + 8 + 24 * (size_t)index;
    memcpy(&processor, at, 4);
    memcpy(&offset, at + 8, 8);
    memcpy(&size, at + 16, 8);
    if (offset % 16 != 0 || offset > section.size || size > section.size - offset)
        return bad(error, "an object lies outside it");
    *r = (row){processor - PROCESSOR.family, {section.data + offset, (size_t)size}};
    return DVT_OK;
}

/* The number of rows, and the best level among them that this machine has. */
static dvt_status choose(span section, uint32_t *count, uint32_t *best, dvt_error *error)
{
    if (section.size < 8)
        return bad(error, "ends early");
    memcpy(count, section.data, 4);
    if (*count == 0 || *count > MAX_OBJECTS || section.size < 8 + 24 * (size_t)*count)
        return bad(error, "a wrong number of objects");
    uint32_t level = (uint32_t)dvt_processor_level();
    *best = 0;
    for (uint32_t i = 0; i < *count; i++) {
        row r = {0};
        dvt_status status = read_row(section, i, &r, error);
        if (status != DVT_OK)
            return status;
        if (r.level > *best && r.level <= level)
            *best = r.level;
    }
    if (*best == 0)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the artifact's native code is for another kind of processor");
    return DVT_OK;
}

static bool inside(span object, uint64_t offset, uint64_t size)
{
    return offset <= object.size && size <= object.size - offset;
}

static dvt_status read_sections(dvt_code *c, dvt_error *error)
{
    elf_header h;
    if (c->object.size < sizeof h)
        return bad(error, "not an ELF object");
    memcpy(&h, c->object.data, sizeof h);
    if (memcmp(h.ident, "\177ELF\2\1\1", 7) != 0 || h.type != 1 ||
        h.machine != PROCESSOR.machine)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "code section: not an ELF relocatable object for %s", PROCESSOR.name);
    if (h.shentsize != sizeof(elf_section) || h.shnum == 0 || h.shnum > MAX_SECTIONS ||
        h.shoff % 8 != 0 ||
        !inside(c->object, h.shoff, (uint64_t)h.shnum * sizeof(elf_section)))
        return bad(error, "the section table lies outside the object");
    c->sections = (const elf_section *)(const void *)(c->object.data + h.shoff);
    c->section_count = h.shnum;
    for (uint32_t i = 0; i < h.shnum; i++) {
        const elf_section *s = &c->sections[i];
        if (s->type != SHT_NOBITS && s->type != 0 && !inside(c->object, s->offset, s->size))
            return bad(error, "a section lies outside the object");
        if (s->type != SHT_SYMTAB)
            continue;
        if (c->symbols != NULL || s->entsize != sizeof(elf_symbol) || s->offset % 8 != 0 ||
            s->link >= h.shnum)
            return bad(error, "the symbol table is malformed");
        const elf_section *names = &c->sections[s->link];
        if (!inside(c->object, names->offset, names->size) || names->size == 0 ||
            c->object.data[names->offset + names->size - 1] != 0)
            return bad(error, "the symbol names are malformed");
        c->symbols = (const elf_symbol *)(const void *)(c->object.data + s->offset);
        c->symbol_count = (size_t)(s->size / sizeof(elf_symbol));
        c->names = (const char *)c->object.data + names->offset;
        c->names_size = (size_t)names->size;
    }
    return c->symbols != NULL ? DVT_OK : bad(error, "no symbol table");
}

static bool is_loaded(const elf_section *s)
{
    return (s->flags & SHF_ALLOC) != 0 && s->size > 0;
}

/* Places sections of one kind after `at`; code and data lie on pages of their own. */
static dvt_status place(dvt_code *c, bool code, uint64_t *at, dvt_error *error)
{
    for (uint32_t i = 0; i < c->section_count; i++) {
        const elf_section *s = &c->sections[i];
        if (!is_loaded(s) || ((s->flags & SHF_EXECINSTR) != 0) != code)
            continue;
        if ((s->flags & SHF_WRITE) != 0 || (s->type != SHT_PROGBITS && s->type != SHT_UNWIND))
            return bad(error, "holds writable data: only code and constants can be loaded");
        uint64_t align = s->addralign > 1 ? s->addralign : 1;
        if (align > 4096 || (align & (align - 1)) != 0)
            return bad(error, "an alignment that cannot be met");
        *at = (*at + align - 1) & ~(align - 1);
        c->places[i] = *at;
        *at += s->size; /* sizes are within the file, so this cannot overflow */
    }
    return DVT_OK;
}

static dvt_status lay_out(dvt_code *c, dvt_error *error)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = 0;
    c->places = malloc(c->section_count * sizeof *c->places);
    if (c->places == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    memset(c->places, 0xff, c->section_count * sizeof *c->places);
    dvt_status status = place(c, true, &at, error);
    if (status != DVT_OK)
        return status;
    at = (at + 15) & ~15ull;
    c->stubs = (size_t)at;
    at = (at + IMPORTS * STUB_SIZE + page - 1) / page * page;
    c->code_size = (size_t)at;
    status = place(c, false, &at, error);
    if (status != DVT_OK)
        return status;
    c->size = (size_t)((at + page - 1) / page * page);
    if (c->size > (1u << 30))
        return bad(error, "more than a gigabyte of code");
    void *memory =
        mmap(NULL, c->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return dvt_fail(error, DVT_ERROR_MEMORY, "no memory for native code");
    c->memory = memory;
    for (uint32_t i = 0; i < c->section_count; i++)
        if (c->places[i] != UINT64_MAX)
            memcpy(c->memory + c->places[i], c->object.data + c->sections[i].offset,
                   (size_t)c->sections[i].size);
    return DVT_OK;
}

/* What lies outside may be too far away for a plain call. */
static void write_stubs(dvt_code *c)
{
    for (size_t i = 0; i < IMPORTS; i++) {
        uint64_t address = 0;
        if (imports[i].copy != NULL)
            memcpy(&address, &imports[i].copy, sizeof imports[i].copy);
        else
            memcpy(&address, &imports[i].fill, sizeof imports[i].fill);
        PROCESSOR.stub(c->memory + c->stubs + i * STUB_SIZE, address);
    }
}

static bool symbol_name(const dvt_code *c, const elf_symbol *s, const char **name)
{
    *name = s->name < c->names_size ? c->names + s->name : NULL;
    return *name != NULL;
}

/* Where a symbol lies in memory; UINT64_MAX where it is not part of what was loaded. */
static uint64_t address_of(const dvt_code *c, const elf_symbol *s)
{
    const char *name;
    if (s->section == 0) {
        if (!symbol_name(c, s, &name))
            return UINT64_MAX;
        for (size_t i = 0; i < IMPORTS; i++)
            if (strcmp(imports[i].name, name) == 0)
                return c->stubs + i * STUB_SIZE;
        return UINT64_MAX;
    }
    if (s->section >= c->section_count || c->places[s->section] == UINT64_MAX ||
        s->value > c->sections[s->section].size)
        return UINT64_MAX;
    return c->places[s->section] + s->value;
}

static dvt_status relocate_one(dvt_code *c, uint32_t target, const elf_rela *r,
                               dvt_error *error)
{
    uint32_t type = (uint32_t)r->info, symbol = (uint32_t)(r->info >> 32);
    const elf_section *section = &c->sections[target];
    unsigned width = PROCESSOR.width(type);
    if (width == 0)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "code section: relocation of kind %u",
                        type);
    if (symbol >= c->symbol_count || section->size < width || r->offset > section->size - width)
        return bad(error, "a relocation lies outside its section");
    uint64_t to = address_of(c, &c->symbols[symbol]);
    if (to == UINT64_MAX) {
        const char *name;
        if (!symbol_name(c, &c->symbols[symbol], &name))
            name = "?";
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "code section: calls %.100s, which it may not", name);
    }
    uint64_t from = c->places[target] + r->offset;
    int64_t reached;
    if (__builtin_add_overflow((int64_t)to, r->addend, &reached) ||
        !PROCESSOR.relocate(type, c->memory + from, from, reached))
        return bad(error, "a relocation reaches too far");
    return DVT_OK;
}

static dvt_status relocate(dvt_code *c, dvt_error *error)
{
    for (uint32_t i = 0; i < c->section_count; i++) {
        const elf_section *s = &c->sections[i];
        if (s->type != SHT_RELA || s->info >= c->section_count ||
            c->places[s->info] == UINT64_MAX)
            continue;
        if (s->entsize != sizeof(elf_rela))
            return bad(error, "a relocation table is malformed");
        for (uint64_t n = 0; n < s->size / sizeof(elf_rela); n++) {
            elf_rela r;
            memcpy(&r, c->object.data + s->offset + n * sizeof r, sizeof r);
            dvt_status status = relocate_one(c, s->info, &r, error);
            if (status != DVT_OK)
                return status;
        }
    }
    return DVT_OK;
}

static dvt_status protect(dvt_code *c, dvt_error *error)
{
    if (mprotect(c->memory, c->code_size, PROT_READ | PROT_EXEC) != 0 ||
        (c->size > c->code_size &&
         mprotect(c->memory + c->code_size, c->size - c->code_size, PROT_READ) != 0))
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "this system does not let a process make memory executable");
    __builtin___clear_cache((char *)c->memory, (char *)c->memory + c->code_size);
    return DVT_OK;
}

int dvt_may_execute(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    int allowed = mprotect(memory, page, PROT_READ | PROT_EXEC) == 0;
    munmap(memory, page);
    return allowed;
}

static dvt_status load_object(span object, dvt_code **code, dvt_error *error)
{
    dvt_code *c = calloc(1, sizeof *c);
    if (c == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    *code = c;
    c->object = object;
    dvt_status status = read_sections(c, error);
    if (status == DVT_OK)
        status = lay_out(c, error);
    if (status == DVT_OK) {
        write_stubs(c);
        status = relocate(c, error);
    }
    return status == DVT_OK ? protect(c, error) : status;
}

dvt_status dvt_code_load(span section, dvt_code **code, dvt_error *error)
{
    dvt_code *first = NULL, **end = &first;
    uint32_t count = 0, best = 0;
    dvt_status status = choose(section, &count, &best, error);
    for (uint32_t i = 0; status == DVT_OK && i < count; i++) {
        row r = {0};
        status = read_row(section, i, &r, error);
        if (status != DVT_OK || r.level != best)
            continue;
        status = load_object(r.object, end, error);
        end = *end != NULL ? &(*end)->next : end;
    }
    if (status != DVT_OK) {
        dvt_code_free(first);
        return status;
    }
    *code = first;
    return DVT_OK;
}

uint32_t dvt_processor_number(void)
{
    int level = dvt_processor_level();
    return level > 0 ? PROCESSOR.family + (uint32_t)level : 0;
}

/* Only what an object offers to others is a kernel: a global function. Others have types of
 * their own. */
static bool is_offered(const elf_symbol *s)
{
    return s->section != 0 && s->info == (STB_GLOBAL << 4 | STT_FUNC);
}

static void *symbol_of(const dvt_code *c, const char *name, size_t length)
{
    const char *held;
    for (size_t i = 0; i < c->symbol_count; i++) {
        const elf_symbol *s = &c->symbols[i];
        if (!is_offered(s) || !symbol_name(c, s, &held) || strlen(held) != length ||
            memcmp(held, name, length) != 0)
            continue;
        uint64_t at = address_of(c, s);
        return at < c->stubs ? c->memory + at : NULL;
    }
    return NULL;
}

void *dvt_code_symbol(const dvt_code *code, const char *name, size_t length)
{
    void *found = NULL;
    for (; code != NULL && found == NULL; code = code->next)
        found = symbol_of(code, name, length);
    return found;
}

void dvt_code_free(dvt_code *code)
{
    while (code != NULL) {
        dvt_code *next = code->next;
        if (code->memory != NULL)
            munmap(code->memory, code->size);
        free(code->places);
        free(code);
        code = next;
    }
}
