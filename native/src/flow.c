/* What refers to what: nothing is read before it is written, nothing is written that may not
 * be, and every piece of memory has a lifetime. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static dvt_status bad(dvt_error *error, uint32_t at, const char *problem)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "instruction %u %s", at, problem);
}

static void touch(program *p, uint32_t buffer, uint32_t at)
{
    buffer_record *root = &p->buffers[p->buffers[buffer].root];
    buffer_record *owner = &p->buffers[p->buffers[buffer].owner];
    if (root->life_first == DVT_NONE)
        root->life_first = at;
    root->life_last = at;
    owner->last = at;
    if (owner->first == DVT_NONE)
        owner->first = at;
}

/* Whether an instruction changes what was there before the call: a copy, or a kernel on the
 * host whose only result is its first operand itself. */
static bool writes_back(const program *p, const instruction *in)
{
    if (in->opcode == OP_COPY)
        return true;
    return in->opcode == OP_KERNEL && p->device_count == 0 && in->output_count == 1 &&
           in->input_count > 0 && in->inputs[0] == in->outputs[0];
}

/* Whether an instruction may write to a buffer of this kind. */
static bool may_write(program *p, const instruction *in, uint8_t kind)
{
    const bool back = writes_back(p, in);
    switch (kind) {
    case KIND_TEMPORARY:
    case KIND_OUTPUT:
        return true;
    case KIND_HOST:
        return in->calls_host || in->opcode == OP_COPY;
    case KIND_INPUT:
        p->writes_inputs |= back;
        return back;
    case KIND_STATE:
        p->writes_state |= back;
        return back;
    default:
        return false;
    }
}

static dvt_status define(program *p, const instruction *in, uint32_t at, uint32_t buffer,
                         unsigned char *defined, dvt_error *error)
{
    const buffer_record *b = &p->buffers[buffer];
    const buffer_record *owner = &p->buffers[b->owner];
    if (!may_write(p, in, owner->kind))
        return bad(error, at, "writes to a buffer that it may not write");
    if (in->calls_host && owner->kind == KIND_HOST &&
        (b->kind == KIND_VIEW || defined[b->owner]))
        return bad(error, at, "makes a host buffer a second time");
    if (!in->calls_host && owner->kind == KIND_HOST && !defined[b->owner])
        return bad(error, at, "writes to a host buffer that no host call has made");
    if (in->calls_host && owner->base != DVT_NONE)
        return bad(error, at, "has a host call take over memory");
    if (owner->kind == KIND_TEMPORARY && owner->base != DVT_NONE && !defined[b->owner]) {
        uint32_t previous = owner->base;
        if (!defined[previous] || p->buffers[previous].last > at)
            return bad(error, at, "takes memory that is still needed");
        defined[previous] = 0;
    }
    defined[b->owner] = 1;
    return DVT_OK;
}

static dvt_status check_instruction(program *p, uint32_t at, unsigned char *defined,
                                    dvt_error *error)
{
    instruction *in = &p->instructions[at];
    dvt_status placed = dvt_devices_check(p, at, error);
    if (placed != DVT_OK)
        return placed;
    for (uint32_t i = 0; i < in->input_count; i++)
        if (in->inputs[i] != DVT_NONE && !defined[p->buffers[in->inputs[i]].owner])
            return bad(error, at, "uses a buffer before it is written");
    for (uint32_t i = 0; i < in->output_count; i++) {
        if (in->outputs[i] == DVT_NONE)
            continue;
        dvt_status status = define(p, in, at, in->outputs[i], defined, error);
        if (status != DVT_OK)
            return status;
        if (!in->calls_host || p->buffers[in->outputs[i]].kind == KIND_HOST)
            continue;
        if (i >= 32)
            return bad(error, at, "stores more than 32 results of a host call");
        in->into |= 1u << i;
    }
    if (in->opcode == OP_COPY) {
        const buffer_record *to = &p->buffers[in->outputs[0]],
                            *from = &p->buffers[in->inputs[0]];
        if (to->rank != from->rank || !dvt_same_dtype(to->dtype, from->dtype))
            return bad(error, at, "copies between unlike buffers");
    }
    return DVT_OK;
}

static dvt_status check_outputs(program *p, unsigned char *defined, dvt_error *error)
{
    for (uint32_t i = 0; i < p->output_count; i++) {
        buffer_record *b = &p->buffers[p->outputs[i]];
        uint8_t kind = p->buffers[b->owner].kind;
        b->handed_out = b->kind == KIND_HOST;
        if ((kind != KIND_OUTPUT && !b->handed_out) || defined[b->owner] != 1)
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "output %u is not written, or handed out twice", i);
        defined[b->owner] = 2;
    }
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].kind == KIND_OUTPUT && defined[i] == 1)
            return dvt_fail(error, DVT_ERROR_MALFORMED, "buffer %u is an output of nothing", i);
    return DVT_OK;
}

/* Inputs appear once each among the parameters; symbols are read from dimensions that exist. */
static dvt_status check_inputs(program *p, unsigned char *defined, dvt_error *error)
{
    for (uint32_t i = 0; i < p->input_count; i++) {
        if (defined[p->inputs[i]])
            return dvt_fail(error, DVT_ERROR_MALFORMED, "input %u is listed twice", i);
        defined[p->inputs[i]] = 1;
    }
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        uint8_t kind = p->buffers[i].kind;
        if (kind == KIND_INPUT && !defined[i])
            return dvt_fail(error, DVT_ERROR_MALFORMED, "buffer %u is an input of nothing", i);
        if (kind == KIND_CONSTANT || kind == KIND_STATE)
            defined[i] = 1;
    }
    for (uint32_t i = 0; i < p->symbol_count; i++) {
        const symbol_record *s = &p->symbols[i];
        const buffer_record *from =
            s->input < p->input_count ? &p->buffers[p->inputs[s->input]] : NULL;
        bool number = from != NULL && s->axis == DVT_NONE && from->rank == 0 &&
                      from->dtype.code == DVT_INT && from->dtype.bits == 64;
        if (from == NULL || (!number && s->axis >= from->rank))
            return dvt_fail(error, DVT_ERROR_MALFORMED, "symbol %u is read from nowhere", i);
    }
    return DVT_OK;
}

static bool is_released(const buffer_record *b)
{
    return b->kind == KIND_HOST && b->first != DVT_NONE && !b->handed_out;
}

/* Host buffers are released after the last instruction that touches them. */
static dvt_status list_releases(program *p, dvt_error *error)
{
    p->releases = calloc(p->buffer_count + 1u, sizeof *p->releases);
    uint32_t *counts = calloc(p->instruction_count + 1u, sizeof *counts);
    if (p->releases == NULL || counts == NULL) {
        free(counts);
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (is_released(&p->buffers[i]))
            counts[p->buffers[i].last]++;
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        p->instructions[i].release_at = at;
        at += counts[i];
    }
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (is_released(&p->buffers[i])) {
            instruction *in = &p->instructions[p->buffers[i].last];
            p->releases[in->release_at + in->release_count++] = i;
        }
    p->release_count = at;
    free(counts);
    return DVT_OK;
}

static void list_views(program *p)
{
    for (uint32_t i = 0; i < p->buffer_count; i++)
        p->buffers[i].first_view = p->buffers[i].next_view = DVT_NONE;
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].kind == KIND_VIEW) {
            buffer_record *owner = &p->buffers[p->buffers[i].owner];
            p->buffers[i].next_view = owner->first_view;
            owner->first_view = i;
        }
}

dvt_status dvt_program_flow(program *p, dvt_error *error)
{
    list_views(p);
    unsigned char *defined = calloc(p->buffer_count + 1u, 1);
    if (defined == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        for (uint32_t n = 0; n < in->input_count; n++)
            if (in->inputs[n] != DVT_NONE)
                touch(p, in->inputs[n], i);
        for (uint32_t n = 0; n < in->output_count; n++)
            if (in->outputs[n] != DVT_NONE)
                touch(p, in->outputs[n], i);
    }
    dvt_status status = check_inputs(p, defined, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->instruction_count; i++)
        status = check_instruction(p, i, defined, error);
    if (status == DVT_OK)
        status = check_outputs(p, defined, error);
    if (status == DVT_OK)
        status = list_releases(p, error);
    free(defined);
    return status;
}
