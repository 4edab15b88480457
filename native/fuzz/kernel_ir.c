/* Kernel IR as a list of tokens: what each number means, and which make up an instruction. */
#include "fuzz.h"
#include "kernel_ir.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    K_NUMBER,       /* a plain number below `limit` */
    K_DIM,          /* 0 and an integer (`second`), or a size */
    K_INTEGER,      /* zigzag */
    K_RAW,          /* eight bytes */
    K_BYTES,        /* `second` bytes of a string at `value` of the section */
    K_INSTRUCTIONS, /* how many instructions a loop has */
    K_LOOPS,        /* how many loops a kernel has */
    K_VALUE,        /* a number that refers to a value */
    K_BEGIN,        /* of a kernel: its length is put here */
    K_END,
    K_PADDED, /* a number with more bytes than it needs */
} token_kind;

typedef struct {
    uint8_t kind;
    bool starts;  /* an instruction */
    bool heads;   /* a loop */
    bool extent;  /* of an axis */
    bool defines; /* a value, as the first token of its instruction */
    uint32_t limit;
    uint64_t value, second;
} token;

typedef struct {
    token *tokens;
    size_t count, room;
    const bytes *from;
    size_t at, end;
    bool failed;
    bool named; /* the form of 1.2 */
    /* of the kernel that is being read */
    uint32_t strings, sizes, buffers, axes, values;
} list;

static list work;
static bytes made;

static token *add(list *l, token t)
{
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 256;
        l->tokens = realloc(l->tokens, l->room * sizeof *l->tokens);
        if (l->tokens == NULL)
            abort();
    }
    l->tokens[l->count] = t;
    return &l->tokens[l->count++];
}

/* ---- reading ---- */

static uint64_t wide(list *l)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (l->at >= l->end)
            break;
        uint8_t byte = l->from->data[l->at++];
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    l->failed = true;
    return 0;
}

static uint32_t plain(list *l, token_kind kind, uint32_t limit)
{
    uint64_t value = wide(l);
    add(l, (token){.kind = (uint8_t)kind, .limit = limit, .value = value});
    return (uint32_t)value;
}

static uint32_t number(list *l, uint32_t limit)
{
    return plain(l, K_NUMBER, limit);
}

/* The name of something, in the form of 1.2. */
static void name(list *l)
{
    if (l->named)
        number(l, l->strings);
}

static void text(list *l)
{
    uint64_t length = wide(l);
    if (length > l->end - l->at) {
        l->failed = true;
        return;
    }
    add(l, (token){.kind = K_BYTES, .value = l->at, .second = length});
    l->at += (size_t)length;
}

static void integer(list *l)
{
    plain(l, K_INTEGER, 0);
}

static void dim(list *l)
{
    uint64_t size = wide(l), second = size == 0 ? wide(l) : 0;
    add(l, (token){.kind = K_DIM, .limit = l->sizes + 1, .value = size, .second = second});
}

static void read_index(list *l)
{
    dim(l);
    for (uint32_t n = number(l, 4); n > 0 && !l->failed; n--) {
        number(l, l->axes);
        dim(l);
    }
    for (uint32_t n = number(l, 2); n > 0 && !l->failed; n--) {
        plain(l, K_VALUE, l->values);
        dim(l);
    }
}

static uint32_t arity_of(uint32_t kind, uint32_t op)
{
    static const uint8_t operations[] = {
#define X(number, name, arity, rule) [number] = arity,
        KERNEL_OPERATIONS(X)
#undef X
    };
    static const uint8_t reductions[] = {
#define X(number, name, arity, rule) [number] = arity,
        KERNEL_REDUCTIONS(X)
#undef X
    };
    if (kind == IR_APPLY)
        return op < sizeof operations ? operations[op] : 0;
    return op < sizeof reductions ? reductions[op] : 0;
}

static void read_constant(list *l, uint32_t type)
{
    if (type != T_F32 && type != T_F64) {
        integer(l);
        return;
    }
    if (l->end - l->at < 8) {
        l->failed = true;
        return;
    }
    token t = {.kind = K_RAW};
    memcpy(&t.value, l->from->data + l->at, 8);
    l->at += 8;
    add(l, t);
}

static void read_definition(list *l, uint32_t kind)
{
    name(l);
    uint32_t type = number(l, T_BOOL + 1);
    if (kind == IR_LOAD) {
        number(l, l->buffers);
        read_index(l);
        plain(l, K_VALUE, l->values + 1);
    } else if (kind == IR_CONST) {
        read_constant(l, type);
    } else if (kind == IR_POSITION) {
        read_index(l);
    } else {
        uint32_t op = number(l, kind == IR_APPLY ? K_COUNT : F_COUNT);
        for (uint32_t n = arity_of(kind, op); n > 0; n--)
            plain(l, K_VALUE, l->values);
    }
    l->values++;
}

static void read_instruction(list *l)
{
    size_t first = l->count;
    uint32_t kind = number(l, IR_KINDS);
    l->tokens[first].starts = true;
    l->tokens[first].defines = kind != IR_STORE;
    if (kind != IR_STORE) {
        read_definition(l, kind);
        return;
    }
    number(l, l->buffers);
    read_index(l);
    plain(l, K_VALUE, l->values);
}

static void read_loop(list *l)
{
    size_t first = l->count;
    for (uint32_t n = number(l, 3); n > 0 && !l->failed; n--)
        number(l, l->axes);
    l->tokens[first].heads = true;
    for (uint32_t n = plain(l, K_INSTRUCTIONS, 8); n > 0 && !l->failed; n--)
        read_instruction(l);
}

static void read_kernel(list *l)
{
    l->values = 0;
    if (l->named)
        name(l);
    else
        text(l);
    l->sizes = number(l, 4);
    for (uint32_t n = l->sizes; l->named && n > 0 && !l->failed; n--)
        name(l);
    l->buffers = number(l, 8);
    for (uint32_t n = l->buffers; n > 0 && !l->failed; n--) {
        name(l);
        number(l, T_COUNT);
        number(l, ROLE_COUNT);
    }
    l->axes = number(l, 8);
    number(l, l->axes + 1);
    for (uint32_t n = l->axes; n > 0 && !l->failed; n--) {
        name(l);
        dim(l);
        l->tokens[l->count - 1].extent = true;
    }
    for (uint32_t n = plain(l, K_LOOPS, 4); n > 0 && !l->failed; n--)
        read_loop(l);
}

static void read_strings(list *l)
{
    l->strings = number(l, 8);
    l->named = l->strings > 0;
    for (uint32_t n = l->strings; n > 0 && !l->failed; n--)
        text(l);
}

static bool read_section(list *l, const bytes *body)
{
    *l = (list){.tokens = l->tokens, .room = l->room, .from = body, .end = body->size};
    read_strings(l);
    for (uint32_t n = number(l, 4); n > 0 && !l->failed; n--) {
        uint64_t length = wide(l);
        size_t end = l->end;
        if (l->failed || length > end - l->at)
            return false;
        l->end = l->at + (size_t)length;
        add(l, (token){.kind = K_BEGIN});
        read_kernel(l);
        add(l, (token){.kind = K_END});
        l->failed = l->failed || l->at != l->end;
        l->end = end;
    }
    return !l->failed && l->at == l->end;
}

/* ---- writing ---- */

static void put(bytes *out, uint64_t value, unsigned padding)
{
    do {
        uint8_t byte = value & 127;
        value >>= 7;
        byte |= value != 0 || padding > 0 ? 128 : 0;
        bytes_add(out, &byte, 1);
    } while (value != 0);
    for (; padding > 0; padding--)
        bytes_add(out, padding > 1 ? "\200" : "\0", 1);
}

static void put_token(bytes *out, const list *l, const token *t)
{
    switch ((token_kind)t->kind) {
    case K_DIM:
        put(out, t->value, 0);
        if (t->value == 0)
            put(out, t->second, 0);
        break;
    case K_RAW:
        bytes_add(out, &t->value, 8);
        break;
    case K_BYTES:
        put(out, t->second, 0);
        bytes_add(out, l->from->data + t->value, (size_t)t->second);
        break;
    case K_PADDED:
        put(out, t->value, 1 + below(9));
        break;
    case K_BEGIN:
    case K_END:
        break;
    default:
        put(out, t->value, 0);
    }
}

static void write_section(const list *l, bytes *out)
{
    static bytes kernel;
    bytes *to = out;
    out->size = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (l->tokens[i].kind == K_BEGIN) {
            kernel.size = 0;
            to = &kernel;
        }
        put_token(to, l, &l->tokens[i]);
        if (l->tokens[i].kind == K_END) {
            to = out;
            put(out, kernel.size, 0);
            bytes_add(out, kernel.data, kernel.size);
        }
    }
}

/* ---- changing ---- */

static uint64_t small_or_odd(void)
{
    return one_in(3) ? odd_number() : below(12);
}

static void change_token(token *t)
{
    bool kept = t->limit > 0 && !one_in(6);
    switch ((token_kind)t->kind) {
    case K_BEGIN:
    case K_END:
        return;
    case K_DIM:
        t->value = one_in(3) ? below(t->limit + 1u) : 0;
        t->second = small_or_odd();
        return;
    case K_RAW:
    case K_INTEGER:
        t->value = small_or_odd();
        return;
    case K_BYTES:
        t->second = below(t->second + 1);
        return;
    default:
        t->value = kept ? below(t->limit) : one_in(2) ? t->limit : small_or_odd();
        if (one_in(40))
            t->kind = K_PADDED;
    }
}

static size_t pick(const list *l, bool (*wanted)(const token *))
{
    for (uint32_t tries = 0; tries < 64; tries++) {
        size_t i = below(l->count);
        if (wanted(&l->tokens[i]))
            return i;
    }
    return SIZE_MAX;
}

static bool starts(const token *t)
{
    return t->starts;
}

static bool is_name(const token *t)
{
    return t->kind == K_BYTES;
}

/* One past the last token of the instruction that starts at `first`. */
static size_t instruction_end(const list *l, size_t first)
{
    size_t end = first + 1;
    while (end < l->count && !l->tokens[end].starts && !l->tokens[end].heads &&
           l->tokens[end].kind != K_END)
        end++;
    return end;
}

/* Values from the `number`-th on in this kernel move up or down. */
static void renumber(list *l, size_t from, uint64_t number, int step)
{
    for (size_t i = from; i < l->count && l->tokens[i].kind != K_END; i++)
        if (l->tokens[i].kind == K_VALUE && l->tokens[i].value >= number)
            l->tokens[i].value += (uint64_t)(int64_t)step;
}

static uint64_t value_number(const list *l, size_t at)
{
    uint64_t found = 0;
    for (size_t i = at; i-- > 0 && l->tokens[i].kind != K_BEGIN;)
        found += l->tokens[i].starts && l->tokens[i].defines;
    return found;
}

/* Adds to the last count of this kind before `at`. */
static void add_to_count(list *l, size_t at, token_kind kind, int step)
{
    for (size_t i = at; i-- > 0 && l->tokens[i].kind != K_BEGIN;)
        if (l->tokens[i].kind == kind) {
            l->tokens[i].value += (uint64_t)(int64_t)step;
            return;
        }
}

static void remove_instruction(list *l)
{
    size_t first = pick(l, starts);
    if (first == SIZE_MAX)
        return;
    size_t end = instruction_end(l, first);
    uint64_t number = value_number(l, first);
    bool defines = l->tokens[first].defines;
    add_to_count(l, first, K_INSTRUCTIONS, -1);
    memmove(l->tokens + first, l->tokens + end, (l->count - end) * sizeof *l->tokens);
    l->count -= end - first;
    if (defines && one_in(2))
        renumber(l, first, number + 1, -1);
}

static bool heads(const token *t)
{
    return t->heads;
}

static void remove_loop(list *l)
{
    size_t first = pick(l, heads), end = first + 1;
    if (first == SIZE_MAX)
        return;
    while (end < l->count && !l->tokens[end].heads && l->tokens[end].kind != K_END)
        end++;
    add_to_count(l, first, K_LOOPS, -1);
    memmove(l->tokens + first, l->tokens + end, (l->count - end) * sizeof *l->tokens);
    l->count -= end - first;
}

/* A token of a string takes the bytes of another one's. */
static void copy_name(list *l)
{
    size_t to = pick(l, is_name), from = pick(l, is_name);
    if (to != SIZE_MAX && from != SIZE_MAX) {
        l->tokens[to].value = l->tokens[from].value;
        l->tokens[to].second = l->tokens[from].second;
    }
}

/* Axes of immense extents. */
static void stretch_axes(list *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->tokens[i].extent && !one_in(3)) {
            l->tokens[i].value = 0;
            l->tokens[i].second = 1ull << (20 + below(43));
        }
}

static void copy_instruction(list *l, size_t first, size_t to, size_t times)
{
    static token copy[256];
    if (first == SIZE_MAX || to == SIZE_MAX)
        return;
    size_t length = instruction_end(l, first) - first;
    if (length > sizeof copy / sizeof *copy || (times > 1 && length > 16))
        return;
    memcpy(copy, l->tokens + first, length * sizeof *copy);
    uint64_t number = value_number(l, to);
    size_t all = times * length;
    add_to_count(l, to, K_INSTRUCTIONS, (int)times);
    for (size_t i = 0; i < all; i++)
        add(l, (token){0});
    memmove(l->tokens + to + all, l->tokens + to, (l->count - all - to) * sizeof *l->tokens);
    for (size_t i = 0; i < times; i++)
        memcpy(l->tokens + to + i * length, copy, length * sizeof *copy);
    if (copy[0].defines && one_in(2))
        renumber(l, to + all, number, (int)times);
}

bool mutate_kernel_ir(bytes *body)
{
    if (!read_section(&work, body))
        return false;
    for (uint32_t changes = 1 + below(3); changes > 0 && work.count > 0; changes--) {
        uint32_t what = below(10);
        if (what == 0)
            remove_instruction(&work);
        else if (what <= 2)
            copy_instruction(&work, pick(&work, starts), pick(&work, starts), 1);
        else if (what == 3 && one_in(8))
            remove_loop(&work);
        else if (what == 3 && one_in(8))
            copy_name(&work);
        else if (what == 3 && one_in(16))
            stretch_axes(&work);
        else if (what == 3 && one_in(200)) /* more values than there may be */
            copy_instruction(&work, pick(&work, starts), pick(&work, starts), MAX_VALUES);
        else
            change_token(&work.tokens[below(work.count)]);
    }
    write_section(&work, &made);
    bytes_set(body, made.data, made.size);
    return true;
}
