/* The kernel IR section: decoded and verified once, when a file is opened. What leaves here has
 * every index in range, operands that fit their operations, and no use before its definition.
 *
 * Since 1.3 there is one way only to write a kernel down: numbers have no needless bytes, sizes
 * and axes are numbered in the order of their first use, constants are of their type. So a
 * reader that encodes what it understood and finds the same bytes has understood the same. */
#include "kernel_ir.h"

#include <stdlib.h>
#include <string.h>

struct dvt_kernel_set {
    kernel_ir *kernels;
    uint32_t count;
    uint32_t *sorted; /* by name */
};

typedef struct {
    span left;
    dvt_error *error;
    bool failed;
    bool named; /* the form of 1.2, with names that mean nothing */
} reader;

static void bad(reader *r, const char *problem)
{
    if (!r->failed)
        dvt_fail(r->error, DVT_ERROR_MALFORMED, "kernel IR section: %s", problem);
    r->failed = true;
}

static void no_memory(reader *r)
{
    if (!r->failed)
        dvt_fail(r->error, DVT_ERROR_MEMORY, "out of memory");
    r->failed = true;
}

static const uint8_t *take(reader *r, uint64_t count)
{
    static const uint8_t nothing[8];
    if (!r->failed && count > r->left.size)
        bad(r, "ends early");
    if (r->failed)
        return nothing;
    const uint8_t *at = r->left.data;
    r->left.data += count;
    r->left.size -= (size_t)count;
    return at;
}

/* Seven bits a byte, the lowest first. */
static uint64_t wide(reader *r)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = *take(r, 1);
        if (shift == 63 && byte > 1)
            break;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte == 0 && shift > 0 && !r->named)
            bad(r, "a number with needless bytes");
        if (byte < 128)
            return r->failed ? 0 : value;
    }
    bad(r, "a number of more than 64 bits");
    return 0;
}

static uint32_t number(reader *r, uint64_t limit)
{
    uint64_t value = wide(r);
    if (value > limit)
        bad(r, "a number is out of range");
    return r->failed ? 0 : (uint32_t)value;
}

/* An index into a list of `count`. */
static uint32_t below(reader *r, uint32_t count)
{
    if (count == 0)
        bad(r, "an index into an empty list");
    return count == 0 ? 0 : number(r, count - 1);
}

static int64_t integer(reader *r)
{
    uint64_t value = wide(r);
    return (int64_t)(value % 2 == 0 ? value / 2 : ~(value / 2));
}

static void *array(reader *r, uint32_t count, size_t size)
{
    void *made = calloc(count ? count : 1, size);
    if (made == NULL)
        no_memory(r);
    return made;
}

/* Room for items that follow: each takes a byte at least, so that a short section cannot ask
 * for much memory. */
static void *items(reader *r, uint32_t count, size_t size)
{
    if (count > r->left.size)
        bad(r, "ends early");
    return r->failed ? NULL : array(r, count, size);
}

/* The next element of a growing list, zeroed; NULL when there is no memory. */
static void *append(reader *r, void **list, uint32_t *count, size_t size)
{
    if ((*count & (*count - 1)) == 0) { /* 0 or a power of two: full */
        void *larger = realloc(*list, (*count ? 2 * (size_t)*count : 1) * size);
        if (larger == NULL) {
            no_memory(r);
            return NULL;
        }
        *list = larger;
    }
    return memset((char *)*list + size * (*count)++, 0, size);
}

/* ---- one kernel ---- */

typedef struct {
    reader r;
    kernel_ir *k;
    const span *strings; /* of the form of 1.2 */
    uint32_t string_count;
    uint32_t loop;                  /* being read */
    uint32_t sizes_used, axes_used; /* how many were met so far */
} decoder;

/* What 1.2 called something; nothing hangs on it. */
static void skip_name(decoder *d)
{
    if (d->r.named)
        below(&d->r, d->string_count);
}

/* Where something is used that is numbered in the order of its first use. */
static void meet(decoder *d, uint32_t number, uint32_t *met)
{
    if (number > *met && !d->r.named)
        bad(&d->r, "sizes or axes are not in the order of their use");
    *met += number == *met;
}

static type_id compute_type(decoder *d)
{
    return (type_id)number(&d->r, T_BOOL);
}

static ir_dim dim(decoder *d)
{
    uint32_t size = number(&d->r, d->k->size_count);
    if (size > 0)
        meet(d, size - 1, &d->sizes_used);
    return (ir_dim){size == 0 ? integer(&d->r) : 0, size};
}

/* A value that can be seen here. */
static uint32_t value(decoder *d)
{
    uint32_t place = below(&d->r, d->k->value_count);
    if (d->r.failed)
        return 0;
    const ir_value *v = &d->k->values[place];
    bool seen =
        v->loop == d->loop ? !v->reduced : v->reduced || d->k->loops[v->loop].axis_count == 0;
    if (!seen)
        bad(&d->r, "a value is used where it cannot be seen");
    return place;
}

static void add_term(decoder *d, uint32_t place)
{
    void *list = d->k->terms;
    ir_dim stride = dim(d);
    ir_term *t = append(&d->r, &list, &d->k->term_count, sizeof *t);
    d->k->terms = list;
    if (t != NULL)
        *t = (ir_term){place, stride};
}

static ir_index read_index(decoder *d)
{
    ir_index index = {dim(d), d->k->term_count, 0, 0};
    const ir_loop *loop = &d->k->loops[d->loop];
    index.axis_count = number(&d->r, MAX_TERMS);
    for (uint32_t i = 0; !d->r.failed && i < index.axis_count; i++) {
        uint32_t axis = below(&d->r, d->k->axis_count);
        bool known = axis < d->k->kernel_axis_count;
        for (uint32_t n = 0; !known && n < loop->axis_count; n++)
            known = loop->axes[n] == axis;
        if (!known)
            bad(&d->r, "an index along an axis that is not walked there");
        for (uint32_t n = 0; n < i && !d->r.named; n++)
            if (d->k->terms[index.first + n].place == axis)
                bad(&d->r, "an index along an axis twice");
        add_term(d, axis);
    }
    index.value_count = number(&d->r, MAX_TERMS);
    for (uint32_t i = 0; !d->r.failed && i < index.value_count; i++) {
        uint32_t place = value(d);
        if (!d->r.failed && d->k->values[place].type != T_I64)
            bad(&d->r, "an index that is not int64");
        add_term(d, place);
    }
    return index;
}

static void read_buffer_of(decoder *d, ir_instruction *i, uint8_t forbidden)
{
    i->buffer = below(&d->r, d->k->buffer_count);
    if (!d->r.failed && d->k->buffers[i->buffer].role == forbidden)
        bad(&d->r, "a buffer is read or written against its role");
    i->index = read_index(d);
}

static void read_args(decoder *d, ir_instruction *i, type_id *given)
{
    for (uint8_t n = 0; !d->r.failed && n < i->arity; n++) {
        i->args[n] = value(d);
        if (!d->r.failed)
            given[n] = d->k->values[i->args[n]].type;
    }
}

static void read_constant(decoder *d, ir_instruction *i)
{
    if (dvt_is_float(i->type)) {
        memcpy(&i->constant.f, take(&d->r, 8), 8);
        return;
    }
    i->constant.i = integer(&d->r);
    if (!d->r.named && !dvt_holds(i->type, i->constant.i))
        bad(&d->r, "a constant that its type does not hold");
}

static void read_load(decoder *d, ir_instruction *i)
{
    read_buffer_of(d, i, ROLE_OUT);
    i->mask = number(&d->r, d->k->value_count);
    if (d->r.failed)
        return;
    if (i->type != dvt_computed(d->k->buffers[i->buffer].type))
        bad(&d->r, "a load of another type than its buffer's");
    if (i->mask == 0)
        return;
    const ir_value *v = &d->k->values[i->mask - 1];
    bool seen =
        v->loop == d->loop ? !v->reduced : v->reduced || d->k->loops[v->loop].axis_count == 0;
    if (!seen || v->type != T_BOOL)
        bad(&d->r, "a mask that is no bool, or cannot be seen");
}

static void read_operation(decoder *d, ir_instruction *i)
{
    bool is_reduction = i->kind != IR_APPLY;
    type_id given[3] = {T_F32, T_F32, T_F32};
    i->op = (uint8_t)number(&d->r, 255);
    if (!d->r.failed && i->op >= (is_reduction ? F_COUNT : K_COUNT)) {
        d->r.failed = true;
        dvt_fail(d->r.error, DVT_ERROR_UNSUPPORTED,
                 "kernel IR section: the operation %u is not one this build knows: upgrade "
                 "dovetail",
                 i->op);
        return;
    }
    i->arity = dvt_arity(i->op, is_reduction);
    read_args(d, i, given);
    if (!d->r.failed && !dvt_admits(i->op, is_reduction, given, i->type))
        bad(&d->r, "an operation's operands do not fit it");
    uint32_t axes = d->k->loops[d->loop].axis_count;
    if (i->kind == IR_REDUCE && axes == 0)
        bad(&d->r, "a reduction in a loop without axes");
    if (i->kind == IR_SCAN && i->arity != 1)
        bad(&d->r, "a scan of more than one value");
    if (i->kind == IR_SCAN && axes != 1)
        bad(&d->r, "a scan in a loop of other than one axis");
}

static void read_definition(decoder *d, ir_instruction *i)
{
    skip_name(d);
    i->type = compute_type(d);
    switch (i->kind) {
    case IR_LOAD:
        read_load(d, i);
        break;
    case IR_CONST:
        read_constant(d, i);
        break;
    case IR_POSITION:
        i->index = read_index(d);
        if (i->type != T_I64 || i->index.value_count != 0)
            bad(&d->r, "a position that is not int64, or gathers");
        break;
    default:
        read_operation(d, i);
    }
    if (!d->r.failed && d->k->value_count >= MAX_VALUES)
        bad(&d->r, "too many values");
    void *list = d->k->values;
    i->result = d->k->value_count;
    ir_value *v = append(&d->r, &list, &d->k->value_count, sizeof *v);
    d->k->values = list;
    if (v != NULL)
        *v = (ir_value){i->type, d->loop, i->kind == IR_REDUCE};
}

static void read_instruction(decoder *d)
{
    ir_instruction i = {.kind = (uint8_t)below(&d->r, IR_KINDS)};
    if (i.kind == IR_STORE) {
        read_buffer_of(d, &i, ROLE_IN);
        i.arity = 1;
        read_args(d, &i, &i.type);
    } else {
        read_definition(d, &i);
    }
    void *list = d->k->instructions;
    ir_instruction *made =
        d->r.failed ? NULL : append(&d->r, &list, &d->k->instruction_count, sizeof i);
    d->k->instructions = list;
    if (made != NULL)
        *made = i;
}

static void read_loop(decoder *d)
{
    kernel_ir *k = d->k;
    ir_loop *loop = &k->loops[d->loop];
    loop->axis_count = number(&d->r, MAX_AXES);
    for (uint32_t i = 0; !d->r.failed && i < loop->axis_count; i++) {
        loop->axes[i] = below(&d->r, k->axis_count);
        bool twice = loop->axes[i] < k->kernel_axis_count;
        for (uint32_t n = 0; n < i; n++)
            twice = twice || loop->axes[n] == loop->axes[i];
        if (twice)
            bad(&d->r, "a loop's axis is the kernel's, or there twice");
        meet(d, loop->axes[i], &d->axes_used);
    }
    loop->first = k->instruction_count;
    loop->count = number(&d->r, 2 * MAX_VALUES);
    for (uint32_t i = 0; !d->r.failed && i < loop->count; i++)
        read_instruction(d);
}

static void read_buffers(decoder *d)
{
    kernel_ir *k = d->k;
    uint32_t count = number(&d->r, MAX_BUFFERS);
    k->buffers = items(&d->r, count, sizeof *k->buffers);
    for (; !d->r.failed && k->buffer_count < count; k->buffer_count++) {
        ir_buffer *b = &k->buffers[k->buffer_count];
        skip_name(d);
        b->type = (type_id)number(&d->r, T_COUNT - 1);
        b->role = (uint8_t)below(&d->r, ROLE_COUNT);
        b->place = b->role == ROLE_IN ? k->input_count++ : k->output_count++;
    }
}

static bool is_plain(uint8_t letter, bool first)
{
    bool digit = letter >= '0' && letter <= '9';
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') ||
           letter == '_' || (!first && (digit || letter == '.'));
}

/* What section 7 calls the kernel: the one name with a meaning, so it is a plain one. */
static void read_name(decoder *d)
{
    if (d->r.named) {
        uint32_t name = below(&d->r, d->string_count);
        if (!d->r.failed)
            d->k->name = d->strings[name];
        return;
    }
    uint32_t length = number(&d->r, MAX_NAME);
    const uint8_t *at = take(&d->r, length);
    bool plain = length > 0;
    for (uint32_t n = 0; !d->r.failed && n < length; n++)
        plain = plain && is_plain(at[n], n == 0);
    if (!plain)
        bad(&d->r, "a kernel's name that is not plain");
    if (!d->r.failed)
        d->k->name = (span){at, length};
}

static void read_kernel(decoder *d)
{
    kernel_ir *k = d->k;
    read_name(d);
    k->size_count = number(&d->r, MAX_SIZES);
    for (uint32_t i = 0; d->r.named && !d->r.failed && i < k->size_count; i++)
        skip_name(d);
    read_buffers(d);
    k->axis_count = number(&d->r, MAX_AXES);
    k->kernel_axis_count = d->axes_used = number(&d->r, k->axis_count);
    k->extents = items(&d->r, k->axis_count, sizeof *k->extents);
    for (uint32_t i = 0; !d->r.failed && i < k->axis_count; i++) {
        skip_name(d);
        k->extents[i] = dim(d);
    }
    uint32_t loops = number(&d->r, MAX_LOOPS);
    k->loops = items(&d->r, loops, sizeof *k->loops);
    for (; !d->r.failed && d->loop < loops; d->loop++) {
        k->loop_count++;
        read_loop(d);
    }
    if (!d->r.failed && d->r.left.size != 0)
        bad(&d->r, "a kernel has bytes left over");
    if (!d->r.named && (d->sizes_used != k->size_count || d->axes_used != k->axis_count))
        bad(&d->r, "sizes or axes that nothing uses");
    k->entry = (dvt_kernel){sizeof(dvt_kernel), 1, "kernel IR", dvt_kernel_ir_check,
                            dvt_kernel_ir_run};
}

/* ---- the section ---- */

/* The names that 1.2 starts with. There is at least one, where there is a kernel; since 1.3 a
 * zero stands there. */
static span *read_strings(reader *r, uint32_t *count)
{
    r->named = r->left.size > 0 && r->left.data[0] != 0;
    *count = number(r, r->left.size);
    span *strings = items(r, *count, sizeof *strings);
    for (uint32_t i = 0; !r->failed && i < *count; i++) {
        uint64_t length = wide(r);
        strings[i] = (span){take(r, length), (size_t)length};
    }
    return strings;
}

static int compare_names(const kernel_ir *a, const uint8_t *name, size_t length)
{
    size_t least = a->name.size < length ? a->name.size : length;
    int order = least ? memcmp(a->name.data, name, least) : 0;
    return order != 0 ? order : (a->name.size > length) - (a->name.size < length);
}

static int compare_kernels(const void *a, const void *b)
{
    const kernel_ir *right = *(const kernel_ir *const *)b;
    return compare_names(*(const kernel_ir *const *)a, right->name.data, right->name.size);
}

static void sort_kernels(reader *r, dvt_kernel_set *set)
{
    const kernel_ir **order = array(r, set->count, sizeof *order);
    set->sorted = array(r, set->count, sizeof *set->sorted);
    for (uint32_t i = 0; !r->failed && i < set->count; i++)
        order[i] = &set->kernels[i];
    if (!r->failed)
        qsort(order, set->count, sizeof *order, compare_kernels);
    for (uint32_t i = 0; !r->failed && i < set->count; i++) {
        set->sorted[i] = (uint32_t)(order[i] - set->kernels);
        if (i > 0 && compare_kernels(&order[i - 1], &order[i]) == 0)
            bad(r, "two kernels of one name");
    }
    free(order);
}

static void read_set(reader *r, dvt_kernel_set *set)
{
    uint32_t string_count;
    span *strings = read_strings(r, &string_count);
    uint32_t count = number(r, r->left.size < MAX_KERNELS ? r->left.size : MAX_KERNELS);
    set->kernels = items(r, count, sizeof *set->kernels);
    for (; !r->failed && set->count < count; set->count++) {
        uint64_t size = wide(r);
        span body = {take(r, size), (size_t)size};
        decoder d = {.r = {body, r->error, r->failed, r->named},
                     .k = &set->kernels[set->count],
                     .strings = strings,
                     .string_count = string_count};
        d.k->number = set->count;
        if (!r->failed)
            read_kernel(&d);
        if (d.r.failed) {
            r->failed = true;
            set->count++; /* what was made of it is freed with the others */
            break;
        }
    }
    if (!r->failed && r->left.size != 0)
        bad(r, "has bytes left over");
    if (!r->failed)
        sort_kernels(r, set);
    free(strings);
}

dvt_status dvt_kernels_decode(span section, dvt_kernel_set **made, dvt_error *error)
{
    reader r = {section, error, false, false};
    dvt_kernel_set *set = calloc(1, sizeof *set);
    if (set == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    read_set(&r, set);
    if (r.failed) {
        dvt_kernels_free(set);
        return error->status;
    }
    *made = set;
    return DVT_OK;
}

const dvt_kernel *dvt_kernels_find(const dvt_kernel_set *set, const char *name, size_t length)
{
    uint32_t low = 0, high = set != NULL ? set->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const kernel_ir *k = &set->kernels[set->sorted[middle]];
        int order = compare_names(k, (const uint8_t *)name, length);
        if (order == 0)
            return &k->entry;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

void dvt_kernels_free(dvt_kernel_set *set)
{
    for (uint32_t i = 0; set != NULL && set->kernels != NULL && i < set->count; i++) {
        kernel_ir *k = &set->kernels[i];
        free(k->buffers);
        free(k->extents);
        free(k->loops);
        free(k->instructions);
        free(k->terms);
        free(k->values);
    }
    if (set != NULL) {
        free(set->kernels);
        free(set->sorted);
    }
    free(set);
}
