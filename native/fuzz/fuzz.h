/* fuzz.h: what the fuzzer's files share.
 *
 * An input is made from seeds, which are artifacts of every kind: `document.c` takes one apart
 * into sections and puts it together again with offsets, digests and signature in order;
 * `mutate.c` changes it by the tables of `layouts.c`, `kernel_ir.c` and `objects.c` what these
 * do not describe; `exercise.c` opens and runs the result; `faults.c` lets memory run out and
 * fills what is handed out; `main.c` drives. */
#ifndef DVT_FUZZ_H
#define DVT_FUZZ_H

#include "internal.h"

#include <stdio.h>

#define MAX_PARTS 64
#define MAX_SEEDS 128
#define HEADER    128
#define ENTRY     64

/* ---- chance: one stream a input, so that seed and number give it again ---- */

extern uint64_t chance_state;

static inline uint64_t random_word(void)
{
    uint64_t z = chance_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint32_t below(uint64_t limit)
{
    return limit == 0 ? 0 : (uint32_t)(random_word() % limit);
}

static inline bool one_in(uint32_t count)
{
    return below(count) == 0;
}

/* A number at an edge of some range, of any size. */
uint64_t odd_number(void);

/* ---- bytes that grow ---- */

typedef struct {
    uint8_t *data;
    size_t size, room;
} bytes;

void bytes_resize(bytes *b, size_t size); /* what is new is zero */
void bytes_set(bytes *b, const void *data, size_t size);
void bytes_add(bytes *b, const void *data, size_t size);
void bytes_insert(bytes *b, size_t at, const void *data, size_t size); /* NULL: zeros */
void bytes_remove(bytes *b, size_t at, size_t size);

/* The number of `width` bytes at a place, which may lie outside: then it is zero. */
uint64_t number_at(const bytes *b, size_t at, unsigned width);
void set_number(bytes *b, size_t at, unsigned width, uint64_t value);

/* ---- document.c ---- */

typedef struct {
    uint32_t kind, required;
    bytes body;
    bool changed;
    uint8_t digest[32]; /* of the body, where it has not changed */
} part;

typedef struct {
    uint16_t major, minor;
    uint64_t features;
    uint8_t target[32];
    part parts[MAX_PARTS];
    uint32_t count;
    bool damaged; /* something was changed that trusted native code relies on */
    bool patched; /* the file was changed after it was put together */
} document;

typedef struct {
    const char *name;
    uint8_t *file;
    size_t size;
    document parts;
    bytes code; /* its code section, for dvt_use_code; empty: none */
} seed;

extern seed seeds[MAX_SEEDS];
extern uint32_t seed_count;

/* False: not a sound file. */
bool document_read(const uint8_t *file, size_t size, document *d);
void document_copy(document *to, const document *from);
part *document_part(document *d, uint32_t kind); /* NULL: it has none */
part *document_add(document *d, uint32_t kind);
void document_remove(document *d, uint32_t index);
/* The file: sections laid out, digests right, signed where `sign` says so. */
void document_write(document *d, bool sign, bytes *file);
/* Puts the digests of a file's sections (where `sections` says so) and its root right. */
void reseal(bytes *file, bool sections);

/* The key that documents are signed with, and its public half. */
extern const uint8_t signing_key[32];
extern uint8_t public_key[32];

/* ---- layouts.c ---- */

/* What a field holds: an index below some count of the document, or a number. */
typedef enum {
    D_FIXED, /* below `limit` */
    D_WIDE,  /* any number */
    D_ZERO,  /* reserved */
    D_SIZE,
    D_SYMBOL,
    D_BUFFER,
    D_DIM,
    D_INPUT,
    D_KERNEL,
    D_DEVICE,
    D_STRING, /* a place in the strings, with a length in the four bytes behind it */
    D_TEXT,   /* a place in the text of the devices */
    D_BITS,   /* of a dtype */
    D_PLACE,  /* an offset in its own section, a multiple of `limit` */
    D_LENGTH, /* of bytes in its own section */
} domain;

typedef struct {
    uint8_t at, width, domain;
    uint32_t limit;
} field;

typedef struct {
    uint32_t section;
    const char *name;
    uint16_t head;    /* bytes before the first table of the section */
    uint8_t count_at; /* where the head says how many records there are ... */
    uint8_t count_width;
    uint16_t record; /* bytes of one */
    uint8_t field_count;
    uint8_t data_unit; /* bytes follow the records, at offsets that are multiples of this */
    field fields[12];
} table;

extern const table tables[];
extern const size_t table_count;
extern const field header_fields[], entry_fields[], instruction_fields[], attribute_fields[];
extern const size_t header_field_count, entry_field_count, instruction_field_count;

/* Where a table's records begin in its section, and how many fit there. */
size_t table_start(const document *d, const table *t);
uint32_t table_rows(const document *d, const table *t);
uint64_t domain_limit(const document *d, const field *f, const bytes *body);
/* Writes another value to the field of a record at `at`. */
void change_field(const document *d, bytes *body, size_t at, const field *f);

/* ---- kernel_ir.c, objects.c ---- */

/* False: the bytes are not what the format says, so nothing was changed. */
bool mutate_kernel_ir(bytes *body);
bool mutate_code(bytes *body);

/* ---- mutate.c ---- */

/* Makes the next input from a seed. */
void make_input(const seed *from, document *d, bytes *file);

/* ---- exercise.c ---- */

typedef struct {
    uint64_t inputs, opened, runs, results, refusals, compared, faults, findings;
} tally;

extern tally *counts;
extern bool verbose; /* say how each input fares */
extern dvt_plugin *plugins[8];
extern size_t plugin_count;

/* Opens a file and runs it in ways that chance chooses. `d` NULL: it is nobody's document. */
void exercise(const bytes *file, const document *d, const seed *from);

/* ---- devices.c ---- */

/* Puts tables that can fail in the place of the loaded plug-ins'. */
void devices_wrap(void);
/* Whether plug-ins fail now and then, and what their memory holds when it is handed out. */
void devices_fail(bool now_and_then, int byte);
/* Closes the devices, which must hold nothing any more: the next input finds them as new. */
void devices_close(void);

/* ---- interface.c ---- */

void try_interface(void);  /* once a process */
void try_relocation(void); /* one, chosen by chance */

/* ---- faults.c ---- */

/* Memory that is handed out from now on holds this byte. */
void faults_fill(int byte);
/* The `count`-th request from now on fails; 0: none does. */
void faults_fail(uint32_t count);
/* Whether a failure that was asked for is still to come. */
bool faults_pending(void);
/* Whether the failure that was asked for has happened. */
bool faults_happened(void);

/* Says so in words; what the input was is printed and kept. Ends the process unless it is to go
 * on after findings. */
void finding(const char *what);

/* ---- state.c ---- */
/* A new state, sometimes; its contents go into the digest. NULL: the artifact's own serves. */
dvt_state *fuzz_state(dvt_artifact *a, uint64_t *digest);
/* Memory for some of the outputs, to be freed whatever this returns; false: a call with it
 * would fail in any case. */
bool fuzz_results(dvt_artifact *a, const dvt_tensor *given, dvt_tensor *results,
                  int64_t (*shapes)[DVT_MAX_RANK]);

#endif
