/* Devices of an artifact: plug-ins found by name and asked for what the file needs, weights
 * that stay on the device, and the launches of a frame. */
#include "stream.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct device_table device_table;

dvt_status dvt_plugin_failed(const plugin_error *from, dvt_error *error)
{
    static const dvt_status statuses[] = {
        [PLUGIN_OK] = DVT_ERROR_PLUGIN_FAILED,
        [PLUGIN_NOT_FOUND] = DVT_ERROR_PLUGIN_MISSING,
        [PLUGIN_INVALID] = DVT_ERROR_PLUGIN_INVALID,
        [PLUGIN_INCOMPATIBLE] = DVT_ERROR_PLUGIN_INCOMPATIBLE,
        [PLUGIN_FAILED] = DVT_ERROR_PLUGIN_FAILED,
        [PLUGIN_LOST] = DVT_ERROR_DEVICE_LOST,
        [PLUGIN_MEMORY] = DVT_ERROR_MEMORY,
        [PLUGIN_TIMEOUT] = DVT_ERROR_DEVICE_LOST,
    };
    return dvt_fail(error, statuses[from->problem], "%s", from->message);
}

/* ---- plug-ins by themselves ---- */

dvt_status dvt_load_plugin(const char *path, dvt_plugin **made, dvt_error *error)
{
    plugin_error problem = {0};
    return plugin_open(path, 0, made, &problem) == 0 ? DVT_OK
                                                     : dvt_plugin_failed(&problem, error);
}

const char *dvt_plugin_name(const dvt_plugin *p)
{
    return p->info.name;
}

int64_t dvt_close_plugin(dvt_plugin *p)
{
    int64_t leaked = 0;
    if (p == NULL)
        return 0;
    void *library = p->library;
    dvt_lock_take(&p->lock);
    plugin_close(p, &leaked);
    dvt_lock_give(&p->lock);
    plugin_drop(p);
    dlclose(library);
    return leaked;
}

/* ---- opening: is everything there that the file needs? ---- */

static dvt_status find_plugin(const device_record *d, const dvt_open_options *options,
                              plugin **found, dvt_error *error)
{
    for (size_t i = 0; i < options->plugin_count; i++)
        if (strcmp(options->plugins[i]->info.name, d->name) == 0)
            *found = options->plugins[i];
    if (*found == NULL)
        return dvt_fail(error, DVT_ERROR_PLUGIN_MISSING,
                        "the artifact runs on the plug-in '%.60s' (version '%.40s' made it), "
                        "which is not loaded: give its library, as in dovetail.load(path, "
                        "plugins=[\"lib%.60s.so\"]), `dovetail run --plugin` or "
                        "dvt_open_options, or install the package that brings it",
                        d->name, d->version, d->name);
    uint32_t abi = (*found)->api.abi;
    if (abi >> 16 == d->abi >> 16 && abi >= d->abi)
        return DVT_OK;
    return dvt_fail(
        error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
        "the plug-in '%.60s' is too %s for the artifact: it has plug-in ABI %u.%u, and %u.%u "
        "is needed; %s",
        d->name, abi < d->abi ? "old" : "new", abi >> 16, abi & 0xffff, d->abi >> 16,
        d->abi & 0xffff, abi < d->abi ? "upgrade the plug-in" : "export the model again");
}

static dvt_status check_needs(const device_table *t, const device_record *d, plugin *p,
                              dvt_error *error)
{
    for (uint32_t i = 0; i < d->need_count; i++) {
        const need_record *need = &t->needs[d->need_at + i];
        plugin_error problem = {0};
        int64_t value = 0;
        if (plugin_get(p, need->name, &value, &problem) != 0)
            return dvt_plugin_failed(&problem, error);
        if (value < need->least)
            return dvt_fail(error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
                            "the device of plug-in '%.60s' has %.60s %lld, and the artifact "
                            "needs %lld: export the model for this device",
                            d->name, need->name, (long long)value, (long long)need->least);
    }
    return DVT_OK;
}

static dvt_status check_kernel(const device_record *d, const operation_record *o, plugin *p,
                               dvt_error *error)
{
    plugin_error problem = {0};
    const dvp_kernel *kernel;
    if (plugin_find_kernel(p, o->kernel, o->least, o->greatest, o->op, &kernel, &problem) == 0)
        return DVT_OK;
    if (problem.problem != PLUGIN_FAILED)
        return dvt_plugin_failed(&problem, error);
    return dvt_fail(error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
                    "the plug-in '%.60s' (version '%.40s') has no kernel '%.60s' of version %u "
                    "%s for %.60s, which the artifact needs (version '%.40s' made it): upgrade "
                    "the plug-in, or export the model again",
                    d->name, p->info.version, o->kernel, o->least,
                    o->greatest == 0 ? "or later" : "in its range", o->op, d->version);
}

static dvt_status check_blob(const device_record *d, blob_record *b, plugin *p,
                             dvt_error *error)
{
    plugin_error problem = {0};
    int asked = plugin_check_blob(p, b->data, b->size, &b->state, &problem);
    if (asked < 0)
        return dvt_plugin_failed(&problem, error);
    if (asked > 0 || b->state == DVP_BLOB_UNSUPPORTED)
        return dvt_fail(
            error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
            "the plug-in '%.60s' (version '%.40s') cannot run the compiled segment "
            "in the artifact, which version '%.40s' made: export the model again on "
            "this machine, or use the plug-in that compiled it",
            d->name, p->info.version, d->version);
    return DVT_OK;
}

/* The lock of the plug-in is held. */
static dvt_status check_device(device_table *t, uint32_t index, plugin *p, dvt_error *error)
{
    const device_record *d = &t->devices[index];
    plugin_error problem = {0};
    if (plugin_ready(p, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    dvt_status status = check_needs(t, d, p, error);
    for (uint32_t i = 0; status == DVT_OK && i < t->operation_count; i++)
        if (t->operations[i].device == index + 1)
            status = check_kernel(d, &t->operations[i], p, error);
    for (uint32_t i = 0; status == DVT_OK && i < t->blob_count; i++)
        if (t->blobs[i].device == index + 1)
            status = check_blob(d, &t->blobs[i], p, error);
    return status;
}

static dvt_status open_device(dvt_artifact *a, uint32_t index, const dvt_open_options *options,
                              dvt_error *error)
{
    device_table *t = a->program.table;
    device_state *s = &a->devices[index];
    dvt_status status = find_plugin(&t->devices[index], options, &s->plugin, error);
    if (status != DVT_OK)
        return status;
    s->weights = calloc(a->program.buffer_count + 1u, sizeof *s->weights);
    s->programs = calloc(t->blob_count + 1u, sizeof *s->programs);
    if (s->weights == NULL || s->programs == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    dvt_lock_take(&s->plugin->lock);
    status = check_device(t, index, s->plugin, error);
    dvt_lock_give(&s->plugin->lock);
    return status;
}

static dvt_status check_backends(const dvt_artifact *a, const dvt_open_options *options,
                                 dvt_error *error)
{
    const device_table *t = a->program.table;
    for (uint32_t i = 0; i < t->blob_count; i++)
        if (t->blobs[i].device == 0 && !options->host_available)
            return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                            "the artifact holds code of the backend '%.*s', which runs in "
                            "Python beside PyTorch: import torch in a process that has the "
                            "package of that backend, or export without it",
                            dvt_shown(t->blobs[i].owner.size),
                            (const char *)t->blobs[i].owner.data);
    return DVT_OK;
}

/* What a vendor compiled is code like any other: nobody gets to see it who is not to run it. */
static dvt_status check_trust(const dvt_artifact *a, dvt_error *error)
{
    const device_table *t = a->program.table;
    if (t->blob_count == 0 || a->trusted)
        return DVT_OK;
    span owner = t->blobs[0].owner;
    return dvt_fail(error, DVT_ERROR_UNTRUSTED,
                    "the artifact carries code that '%.*s' compiled and no signature of a key "
                    "that is trusted, so it will not be run: sign it, or vouch for the file "
                    "(trust=True, dovetail run --trust)",
                    dvt_shown(owner.size), (const char *)owner.data);
}

dvt_status dvt_devices_open(dvt_artifact *a, const dvt_open_options *options, dvt_error *error)
{
    const device_table *t = a->program.table;
    if (t == NULL)
        return DVT_OK;
    dvt_status status = check_backends(a, options, error);
    if (status == DVT_OK)
        status = check_trust(a, error);
    if (status != DVT_OK)
        return status;
    a->devices = calloc(t->device_count + 1u, sizeof *a->devices);
    if (a->devices == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; status == DVT_OK && i < t->device_count; i++)
        status = open_device(a, i, options, error);
    return status;
}

static void drop_programs(device_state *s, uint32_t count)
{
    plugin *p = s->plugin;
    for (uint32_t i = 0; i < count; i++) {
        plugin_free_compiled(p, s->programs[i], s->loaded);
        s->programs[i] = NULL;
    }
}

static void close_device(const dvt_artifact *a, device_state *s)
{
    if (s->plugin != NULL && s->weights != NULL && s->programs != NULL) {
        dvt_lock_take(&s->plugin->lock);
        bool stay = s->plugin->info.flags & DVP_IMPORTED_CONSTANTS; /* they were waited for */
        for (uint32_t i = 0; i < a->program.buffer_count; i++)
            (stay ? plugin_free_idle : plugin_free)(s->plugin, &s->weights[i]);
        drop_programs(s, a->program.table->blob_count);
        plugin_sweep(s->plugin);
        dvt_lock_give(&s->plugin->lock);
    }
    free(s->weights);
    free(s->programs);
}

/* A stream may be at work for a run that nobody waited for, which reads constants where they
 * are; and those that a device uses there are its own until it has let go of them. */
void dvt_devices_settle(const dvt_artifact *a)
{
    for (const frame *f = a->frames; f != NULL; f = f->next)
        if (!dvt_device_is_free(f, NULL))
            dvt_wait_for_lane(f->devices->flies_on);
    for (uint32_t i = 0; a->devices != NULL && i < a->program.table->device_count; i++) {
        plugin *p = a->devices[i].plugin;
        if (p != NULL && p->info.flags & DVP_IMPORTED_CONSTANTS)
            dvt_wait_for_lanes(p);
    }
}

void dvt_devices_close(dvt_artifact *a)
{
    for (uint32_t i = 0; a->devices != NULL && i < a->program.table->device_count; i++)
        close_device(a, &a->devices[i]);
    free(a->devices);
}

/* ---- frames ---- */

static struct device_frame *new_frame(dvt_artifact *a)
{
    const program *p = &a->program;
    struct device_frame *d = calloc(1, sizeof *d);
    if (d == NULL)
        return NULL;
    d->artifact = a;
    d->arenas = calloc(p->table->device_count + 1u, sizeof *d->arenas);
    d->launches = calloc(p->launch_count + 1u, sizeof *d->launches);
    d->tensors = calloc(p->pointer_count + 1, sizeof *d->tensors);
    d->quantizations = calloc(p->table->operand_count + 1u, sizeof *d->quantizations);
    d->quantized = calloc(p->pointer_count + 1, sizeof *d->quantized);
    d->flags = calloc(p->pointer_count + 1, sizeof *d->flags);
    d->attributes = calloc(p->table->argument_count + 1u, sizeof *d->attributes);
    d->inputs = calloc(p->input_count + 1u, sizeof *d->inputs);
    d->outputs = calloc(p->output_count + 1u, sizeof *d->outputs);
    d->shown = calloc(p->input_count + p->output_count + 1u, sizeof *d->shown);
    d->graphs = calloc(p->instruction_count + 1u, sizeof *d->graphs);
    d->key = calloc(3 * (size_t)p->pointer_count + 1, sizeof *d->key);
    d->identities = calloc(p->buffer_count + 1u, sizeof *d->identities);
    return d;
}

void dvt_devices_unbind(frame *f)
{
    struct device_frame *d = f->devices;
    if (d == NULL)
        return;
    const dvt_artifact *a = d->artifact;
    for (uint32_t i = 0; d->arenas != NULL && i < a->program.table->device_count; i++) {
        plugin *p = a->devices[i].plugin;
        dvt_lock_take(&p->lock);
        plugin_free(p, &d->arenas[i].memory);
        for (uint32_t n = 0; d->graphs != NULL && n < a->program.instruction_count; n++)
            if (a->program.instructions[n].device == i + 1)
                plugin_free_graphs(p, &d->graphs[n]);
        plugin_sweep(p);
        dvt_lock_give(&p->lock);
    }
    free(d->arenas);
    free(d->launches);
    free(d->tensors);
    free(d->quantizations);
    free((void *)d->quantized);
    free(d->flags);
    free(d->attributes);
    free(d->inputs);
    free(d->outputs);
    free(d->shown);
    free(d->graphs);
    free(d->key);
    free(d->identities);
    free(d);
    f->devices = NULL;
}

void dvt_devices_reserve(frame *f, uint32_t device, uint64_t bytes)
{
    f->devices->arenas[device - 1].bytes = bytes;
}

static void describe_attributes(const device_table *t, const frame *f, launch *l)
{
    const operation_record *o = &t->operations[l->in->index];
    const dvt_number *numbers = f->numbers + l->in->numbers_at;
    dvp_attribute *made = f->devices->attributes + o->argument_at;
    for (uint32_t i = 0; i < o->argument_count; i++) {
        const argument_record *a = &t->arguments[o->argument_at + i];
        made[i] = (dvp_attribute){a->name, (int32_t)a->kind, a->count, {0}};
        if (a->kind == DVP_ATTR_TEXT)
            made[i].value.text = a->text;
        else if (a->kind == DVP_ATTR_INT)
            made[i].value.i = numbers[a->number_at].i;
        else if (a->kind == DVP_ATTR_FLOAT)
            made[i].value.f = numbers[a->number_at].f;
        else if (a->kind == DVP_ATTR_INTS)
            made[i].value.ints = &numbers[a->number_at].i;
        else if (a->kind == DVP_ATTR_FLOATS)
            made[i].value.floats = &numbers[a->number_at].f;
    }
    l->op.attributes = made;
    l->op.attribute_count = o->argument_count;
}

static void describe_operand(const frame *f, uint32_t buffer, dvp_tensor *t)
{
    if (buffer == DVT_NONE) {
        t->ndim = -1;
        return;
    }
    memcpy(t, &f->tensors[buffer], sizeof *t);
    t->data = NULL;
}

static dvt_status describe_launch(const dvt_artifact *a, frame *f, const instruction *in,
                                  dvt_error *error)
{
    const device_table *t = a->program.table;
    launch *l = &f->devices->launches[in->launch_at];
    dvp_tensor *tensors = f->devices->tensors + in->pointers_at;
    for (uint32_t i = 0; i < in->output_count; i++)
        describe_operand(f, in->outputs[i], &tensors[i]);
    for (uint32_t i = 0; i < in->input_count; i++)
        describe_operand(f, in->inputs[i], &tensors[in->output_count + i]);
    l->in = in;
    l->op = (dvp_op){.struct_size = sizeof(dvp_op),
                     .input_count = in->input_count,
                     .output_count = in->output_count,
                     .name = "a compiled segment",
                     .inputs = tensors + in->output_count,
                     .outputs = tensors};
    if (in->opcode != OP_LAUNCH)
        return DVT_OK;
    const operation_record *o = &t->operations[in->index];
    l->op.name = o->op;
    l->kernel_name = o->kernel;
    l->least = o->least;
    l->greatest = o->greatest;
    describe_attributes(t, f, l);
    return dvt_operands_describe(a, f, l, error);
}

/* The plug-in judges an operation with its sizes: a file may say anything. Where it would run
 * it with another kernel than the file's, that one is taken. */
static dvt_status ask(plugin *p, launch *l, dvt_error *error)
{
    dvp_answer answer;
    plugin_error problem = {0};
    if (plugin_query_op(p, &l->op, &answer, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    if (answer.supported != 1)
        return dvt_fail(error, DVT_ERROR_PLUGIN_INCOMPATIBLE,
                        "the plug-in '%.60s' refuses %.100s, which the artifact runs with its "
                        "kernel '%.60s': %.150s",
                        p->info.name, l->op.name, l->kernel_name,
                        answer.reason != NULL ? answer.reason : "it gives no reason");
    if (strcmp(answer.kernel, l->kernel_name) != 0) {
        l->kernel_name = answer.kernel;
        l->least = answer.min_version;
        l->greatest = answer.max_version;
    }
    return DVT_OK;
}

dvt_status dvt_devices_bind(dvt_artifact *a, frame *f, dvt_error *error)
{
    const program *p = &a->program;
    dvt_status status = DVT_OK;
    if (f->devices == NULL)
        return DVT_OK;
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].device != 0 && p->buffers[p->buffers[i].root].kind == KIND_CONSTANT)
            f->tensors[i].byte_offset = f->offsets[i];
    dvt_device_shown_start(f);
    for (uint32_t i = 0; status == DVT_OK && i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        if (in->device == 0 || in->opcode == OP_COPY)
            continue;
        status = describe_launch(a, f, in, error);
        if (in->opcode != OP_LAUNCH || status != DVT_OK)
            continue;
        plugin *owner = a->devices[in->device - 1].plugin;
        dvt_lock_take(&owner->lock);
        status = ask(owner, &f->devices->launches[in->launch_at], error);
        if (status == DVT_OK)
            status = dvt_operands_accept(a, owner, &f->devices->launches[in->launch_at], error);
        dvt_lock_give(&owner->lock);
    }
    return status;
}

dvt_status dvt_devices_prepare(dvt_artifact *a, frame *f, dvt_error *error)
{
    if (a->devices == NULL || a->program.table->device_count == 0)
        return DVT_OK;
    struct device_frame *d = f->devices = new_frame(a);
    if (d == NULL || !d->arenas || !d->launches || !d->tensors || !d->attributes ||
        !d->quantizations || !d->quantized || !d->flags || !d->inputs || !d->outputs ||
        !d->shown || !d->graphs || !d->key || !d->identities)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    return DVT_OK;
}

/* ---- what an artifact holds ---- */

dvt_status dvt_device_at(const dvt_artifact *a, size_t index, dvt_device_info *info)
{
    const device_table *t = a->program.table;
    if (t == NULL || index >= t->device_count)
        return DVT_ERROR_ARGUMENT;
    const device_record *d = &t->devices[index];
    dvt_device_info made = {sizeof made, d->abi, d->name, d->version};
    return dvt_fill(info, &made, sizeof made);
}

dvt_status dvt_blob_at(const dvt_artifact *a, size_t index, dvt_blob_info *info)
{
    const device_table *t = a->program.table;
    if (t == NULL || index >= t->blob_count)
        return DVT_ERROR_ARGUMENT;
    const blob_record *b = &t->blobs[index];
    dvt_blob_info made = {sizeof made,
                          b->device != 0,
                          (const char *)b->owner.data,
                          (const char *)b->arguments.data,
                          b->owner.size,
                          b->arguments.size,
                          b->data,
                          (size_t)b->size,
                          b->state};
    return dvt_fill(info, &made, sizeof made);
}
