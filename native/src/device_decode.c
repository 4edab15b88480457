/* The devices and vendor blobs of a file: decoded, every index checked, and the rules about
 * which instruction may touch what. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_SIZE      24
#define DEVICE_SIZE    16
#define NEED_SIZE      16
#define OPERATION_SIZE 32
#define ARGUMENT_SIZE  16
#define BLOB_SIZE      40
#define MAX_DEVICES    64
#define MAX_RECORDS    (1u << 24)

typedef struct device_table device_table;

/* The section's text, which ends with a zero: any place in it starts a string. */
typedef struct {
    const char *text;
    uint32_t size;
} names;

static uint32_t word(const uint8_t *p, size_t index)
{
    uint32_t value;
    memcpy(&value, p + 4 * index, sizeof value);
    return value;
}

static uint64_t wide(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static dvt_status malformed(dvt_error *error, const char *section, const char *problem)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "%s section: %s", section, problem);
}

static const char *name_at(const names *n, uint32_t place)
{
    return place < n->size ? n->text + place : NULL;
}

/* ---- devices, operations, arguments ---- */

static const char *read_devices(device_table *t, const uint8_t *at, const names *n)
{
    uint32_t needs = 0;
    for (uint32_t i = 0; i < t->device_count; i++, at += DEVICE_SIZE) {
        device_record *d = &t->devices[i];
        *d = (device_record){name_at(n, word(at, 0)), name_at(n, word(at, 1)), word(at, 2),
                             needs, word(at, 3)};
        if (d->name == NULL || d->version == NULL || d->name[0] == 0)
            return "a device has no name";
        if (d->need_count > t->need_count - needs)
            return "a device needs more than is listed";
        needs += d->need_count;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(t->devices[k].name, d->name) == 0)
                return "a device is there twice";
    }
    if (needs != t->need_count)
        return "a need is nobody's";
    for (uint32_t i = 0; i < t->need_count; i++, at += NEED_SIZE) {
        t->needs[i] = (need_record){name_at(n, word(at, 0)), (int64_t)wide(at + 8)};
        if (t->needs[i].name == NULL || word(at, 1) != 0)
            return "a need has no name";
    }
    return NULL;
}

static const char *read_operations(device_table *t, const uint8_t *at, const names *n)
{
    uint32_t arguments = 0;
    for (uint32_t i = 0; i < t->operation_count; i++, at += OPERATION_SIZE) {
        operation_record *o = &t->operations[i];
        *o = (operation_record){word(at, 0),
                                name_at(n, word(at, 1)),
                                name_at(n, word(at, 2)),
                                word(at, 3),
                                word(at, 4),
                                word(at, 5),
                                word(at, 6),
                                0,
                                0,
                                0};
        if (o->device >= t->device_count || o->op == NULL || o->kernel == NULL ||
            word(at, 7) != 0)
            return "an operation has no device or no name";
        o->device++;
        if (o->argument_at != arguments || o->argument_count > t->argument_count - arguments)
            return "an operation's arguments are not its own";
        arguments += o->argument_count;
    }
    if (arguments != t->argument_count)
        return "an argument is nobody's";
    for (uint32_t i = 0; i < t->argument_count; i++, at += ARGUMENT_SIZE) {
        argument_record *a = &t->arguments[i];
        *a = (argument_record){name_at(n, word(at, 0)), NULL, word(at, 1), word(at, 2),
                               word(at, 3)};
        if (a->kind == DVP_ATTR_TEXT)
            a->text = name_at(n, a->number_at);
        bool one = a->kind < DVP_ATTR_INTS;
        if (a->name == NULL || a->kind > DVP_ATTR_FLOATS || (one && a->count != 1) ||
            a->count > MAX_RECORDS || (a->kind == DVP_ATTR_TEXT && a->text == NULL))
            return "an argument is not one that exists";
    }
    return NULL;
}

static dvt_status read_section(span s, device_table *t, dvt_error *error)
{
    if (s.size < HEAD_SIZE)
        return malformed(error, "devices", "ends early");
    t->device_count = word(s.data, 0);
    t->need_count = word(s.data, 1);
    t->operation_count = word(s.data, 2);
    t->argument_count = word(s.data, 3);
    uint32_t text = word(s.data, 4);
    uint64_t rows = (uint64_t)t->device_count * DEVICE_SIZE +
                    (uint64_t)t->need_count * NEED_SIZE +
                    (uint64_t)t->operation_count * OPERATION_SIZE +
                    (uint64_t)t->argument_count * ARGUMENT_SIZE;
    if (t->device_count == 0 || t->device_count > MAX_DEVICES || word(s.data, 5) != 0 ||
        text == 0 || s.size - HEAD_SIZE != rows + text || s.data[s.size - 1] != 0)
        return malformed(error, "devices", "its tables do not fill it");
    t->devices = calloc(t->device_count, sizeof *t->devices);
    t->needs = calloc(t->need_count + 1u, sizeof *t->needs);
    t->operations = calloc(t->operation_count + 1u, sizeof *t->operations);
    t->arguments = calloc(t->argument_count + 1u, sizeof *t->arguments);
    if (!t->devices || !t->needs || !t->operations || !t->arguments)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    names n = {(const char *)s.data + HEAD_SIZE + rows, text};
    const uint8_t *at = s.data + HEAD_SIZE;
    const char *problem = read_devices(t, at, &n);
    at += (size_t)t->device_count * DEVICE_SIZE + (size_t)t->need_count * NEED_SIZE;
    if (problem == NULL)
        problem = read_operations(t, at, &n);
    return problem == NULL ? DVT_OK : malformed(error, "devices", problem);
}

/* ---- blobs ---- */

static bool string_at(const dvt_file *file, const uint8_t *at, span *found)
{
    span strings = file->sections[DVT_STRINGS];
    uint32_t offset = word(at, 0), length = word(at, 1);
    if (offset > strings.size || length > strings.size - offset || length > 1u << 20)
        return false;
    *found = (span){strings.data + offset, length};
    return true;
}

static dvt_status read_blobs(const dvt_file *file, device_table *t, dvt_error *error)
{
    span s = file->sections[DVT_BLOBS];
    uint32_t count = s.size < 8 ? 0 : word(s.data, 0);
    if (s.size < 8 || word(s.data, 1) != 0 || count > (s.size - 8) / BLOB_SIZE)
        return malformed(error, "vendor blobs", "ends early");
    t->blob_count = count;
    t->blobs = calloc(count + 1u, sizeof *t->blobs);
    if (t->blobs == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    const uint8_t *at = s.data + 8;
    for (uint32_t i = 0; i < count; i++, at += BLOB_SIZE) {
        blob_record *b = &t->blobs[i];
        uint64_t offset = wide(at + 24);
        b->device = word(at, 4);
        b->size = wide(at + 32);
        if (!string_at(file, at, &b->owner) || !string_at(file, at + 8, &b->arguments) ||
            b->device > t->device_count || word(at, 5) != 0)
            return malformed(error, "vendor blobs", "a blob has no owner");
        if (offset % DVT_ALIGN != 0 || offset < 8 + (uint64_t)BLOB_SIZE * count ||
            offset > s.size || b->size > s.size - offset)
            return malformed(error, "vendor blobs", "a blob lies outside its place");
        b->data = s.data + offset;
    }
    return DVT_OK;
}

dvt_status dvt_devices_decode(const dvt_file *file, program *p, dvt_error *error)
{
    span devices = file->sections[DVT_DEVICES];
    if (devices.data == NULL && file->sections[DVT_BLOBS].data == NULL)
        return DVT_OK;
    p->table = calloc(1, sizeof *p->table);
    if (p->table == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    dvt_status status = DVT_OK;
    if (devices.data != NULL)
        status = read_section(devices, p->table, error);
    if (status == DVT_OK)
        status = dvt_operands_decode(file, p->table, error);
    p->device_count = p->table->device_count;
    if (status == DVT_OK && file->sections[DVT_BLOBS].data != NULL)
        status = read_blobs(file, p->table, error);
    return status;
}

void dvt_devices_drop(program *p)
{
    if (p->table == NULL)
        return;
    free(p->table->devices);
    free(p->table->needs);
    free(p->table->operations);
    free(p->table->arguments);
    free(p->table->blobs);
    free(p->table->operands);
    free(p->table);
}

span dvt_blob_owner(const program *p, uint32_t blob)
{
    return p->table->blobs[blob].owner;
}

span dvt_launch_name(const program *p, uint32_t operation)
{
    const char *name = p->table->operations[operation].kernel;
    return (span){(const uint8_t *)name, strlen(name)};
}

/* ---- what instructions may touch ---- */

static dvt_status bad(dvt_error *error, uint32_t at, const char *problem)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "instruction %u %s", at, problem);
}

/* An operator's arguments take their numbers from the instruction, each of the right kind. */
static const char *check_arguments(const device_table *t, const instruction *in)
{
    const operation_record *o = &t->operations[in->index];
    for (uint32_t i = 0; i < o->argument_count; i++) {
        const argument_record *a = &t->arguments[o->argument_at + i];
        if (a->kind == DVP_ATTR_NONE || a->kind == DVP_ATTR_TEXT)
            continue;
        if (a->number_at > in->attribute_count || a->count > in->attribute_count - a->number_at)
            return "has an argument without a number";
        bool fraction = a->kind == DVP_ATTR_FLOAT || a->kind == DVP_ATTR_FLOATS;
        for (uint32_t k = 0; k < a->count; k++)
            if ((word(in->attributes + 16 * (size_t)(a->number_at + k), 0) == TAG_FLOAT) !=
                fraction)
                return "has an argument of another kind than its number";
    }
    return NULL;
}

static const char *check_copy(program *p, instruction *in)
{
    const buffer_record *to = &p->buffers[in->outputs[0]], *from = &p->buffers[in->inputs[0]];
    in->device = to->device != 0 ? to->device : from->device;
    if (to->device != 0 && from->device != 0)
        return "copies from a device to a device: a copy is to or from the host";
    if (in->device != 0 && to->kind == KIND_VIEW)
        return "copies between devices to a view";
    return NULL;
}

/* Where an instruction runs, and what it takes its numbers from. */
static const char *place(program *p, instruction *in)
{
    const device_table *t = p->table;
    in->calls_host = in->opcode == OP_HOST;
    in->device = 0;
    if (in->opcode == OP_COPY)
        return check_copy(p, in);
    if (in->opcode == OP_LAUNCH) {
        if (in->index != p->table->launched++) /* so that no two share their arguments */
            return "launches an operation out of order";
        in->device = t->operations[in->index].device;
        const char *problem = check_arguments(t, in);
        return problem != NULL ? problem : dvt_operands_check(p, in);
    }
    if (in->opcode == OP_BLOB) {
        in->device = t->blobs[in->index].device;
        in->calls_host = in->device == 0;
    }
    return NULL;
}

static const char *check_sides(const program *p, const instruction *in)
{
    bool any = false;
    for (uint32_t i = 0; i < in->input_count; i++)
        if (in->inputs[i] != DVT_NONE && p->buffers[in->inputs[i]].device != in->device)
            return "reads a buffer of another device";
    for (uint32_t i = 0; i < in->output_count; i++) {
        if (in->outputs[i] == DVT_NONE)
            continue;
        any = true;
        if (p->buffers[in->outputs[i]].device != in->device)
            return "writes a buffer of another device";
    }
    return any || in->calls_host ? NULL : "writes nothing";
}

dvt_status dvt_devices_check(program *p, uint32_t at, dvt_error *error)
{
    instruction *in = &p->instructions[at];
    const char *problem = place(p, in);
    if (problem == NULL && in->opcode != OP_COPY)
        problem = check_sides(p, in);
    if (problem != NULL)
        return bad(error, at, problem);
    if (in->opcode == OP_BLOB && in->device == 0)
        p->host_blob_count++;
    if (in->opcode == OP_LAUNCH || (in->opcode == OP_BLOB && in->device != 0))
        in->launch_at = p->launch_count++;
    return DVT_OK;
}
