/* dovetail._native.PluginProgram: kernels of a plug-in in order, one call to run them all. */
#include "plugin_bindings.h"

typedef struct {
    PyObject_HEAD PyObject *owner;
    pool *memory;
    plugin_program program;
} PluginProgram;

static int read_ranges(pool **p, PyObject *given, plugin_range **ranges, size_t *count)
{
    *count = (size_t)PyTuple_Size(given);
    *ranges = pool_take(p, *count, sizeof **ranges);
    if (*ranges == NULL)
        return -1;
    for (size_t i = 0; i < *count; i++) {
        unsigned long long offset, bytes;
        int slot = -1;
        if (!PyArg_ParseTuple(PyTuple_GetItem(given, (Py_ssize_t)i), "KK|i", &offset, &bytes,
                              &slot))
            return -1;
        (*ranges)[i] = (plugin_range){offset, bytes, slot};
    }
    return 0;
}

static int read_step(PluginProgram *self, PyObject *given, plugin_step *step)
{
    PyObject *op, *name;
    if (!PyArg_ParseTuple(given, "O!UII", &PyTuple_Type, &op, &name, &step->min_version,
                          &step->max_version))
        return -1;
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    size_t size = bytes ? (size_t)PyBytes_Size(bytes) : 0;
    char *text = bytes ? pool_take(&self->memory, size + 1, 1) : NULL;
    if (text != NULL)
        memcpy(text, PyBytes_AsString(bytes), size);
    Py_XDECREF(bytes);
    step->kernel_name = text;
    return text == NULL ? -1 : read_op(&self->memory, op, step);
}

static bool in_slots(const int32_t *slots, uint32_t count, size_t limit)
{
    for (uint32_t i = 0; i < count; i++)
        if (slots[i] >= (int64_t)limit)
            return false;
    return true;
}

static int check_slots(const plugin_program *program)
{
    bool fit = program->kept_at <= program->slot_count;
    for (size_t i = 0; i < program->step_count; i++) {
        const plugin_step *step = &program->steps[i];
        fit = fit && in_slots(step->input_slots, plugin_reads(step), program->slot_count) &&
              in_slots(step->output_slots, step->op.output_count, program->slot_count);
    }
    for (size_t i = 0; i < program->download_count; i++)
        fit = fit && program->downloads[i].slot < (int64_t)program->slot_count;
    if (!fit)
        PyErr_SetString(PyExc_ValueError, "a tensor lies in a slot that is not there");
    return fit ? 0 : -1;
}

static int read_program(PluginProgram *self, PyObject *steps, PyObject *uploads,
                        PyObject *downloads)
{
    plugin_program *program = &self->program;
    program->step_count = (size_t)PyTuple_Size(steps);
    program->steps = pool_take(&self->memory, program->step_count, sizeof *program->steps);
    if (program->steps == NULL)
        return -1;
    for (size_t i = 0; i < program->step_count; i++)
        if (read_step(self, PyTuple_GetItem(steps, (Py_ssize_t)i), program->steps + i) != 0)
            return -1;
    return read_ranges(&self->memory, uploads, &program->uploads, &program->upload_count) ||
                   read_ranges(&self->memory, downloads, &program->downloads,
                               &program->download_count)
               ? -1
               : check_slots(program);
}

static int keep_blob(PluginProgram *self, const char *blob, size_t bytes)
{
    if (blob == NULL)
        return 0;
    char *copy = pool_take(&self->memory, bytes + 1, 1);
    if (copy == NULL)
        return -1;
    memcpy(copy, blob, bytes);
    self->program.blob = copy;
    self->program.blob_bytes = bytes;
    return 0;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plugin", "steps", "uploads", "downloads", "arena",
                            "slots",  "blob",  "kept",    NULL};
    PyObject *owner, *steps, *uploads, *downloads;
    const char *blob = NULL;
    Py_ssize_t blob_bytes = 0;
    long long arena; /* the formats of unsigned numbers wrap */
    unsigned int slots, kept = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!LI|z#I", names, plugin_type, &owner,
                                     &PyTuple_Type, &steps, &PyTuple_Type, &uploads,
                                     &PyTuple_Type, &downloads, &arena, &slots, &blob,
                                     &blob_bytes, &kept))
        return NULL;
    if (arena < 0) {
        PyErr_SetString(PyExc_ValueError, "an arena of a negative size");
        return NULL;
    }
    PluginProgram *self =
        (PluginProgram *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->program.arena_bytes = (uint64_t)arena;
    self->program.slot_count = (size_t)slots + kept;
    self->program.kept_at = slots;
    if (read_program(self, steps, uploads, downloads) != 0 ||
        keep_blob(self, blob, (size_t)blob_bytes) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void program_dealloc(PyObject *object)
{
    PluginProgram *self = (PluginProgram *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->owner != NULL) {
        plugin_free_program(((Plugin *)self->owner)->plugin, &self->program);
        Py_DECREF(self->owner);
    }
    pool_drop(&self->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Addresses of host memory, as many as there are ranges. */
static void **read_addresses(pool **p, PyObject *given, size_t count)
{
    if ((size_t)PyTuple_Size(given) != count) {
        PyErr_Format(PyExc_ValueError, "%zu addresses are needed", count);
        return NULL;
    }
    void **addresses = pool_take(p, count, sizeof *addresses);
    for (size_t i = 0; addresses != NULL && i < count; i++)
        addresses[i] = PyLong_AsVoidPtr(PyTuple_GetItem(given, (Py_ssize_t)i));
    return PyErr_Occurred() ? NULL : addresses;
}

static plugin_buffer **read_slots(pool **p, PyObject *given, size_t count)
{
    plugin_buffer **slots = pool_take(p, count, sizeof *slots);
    if (slots == NULL || (size_t)PyTuple_Size(given) != count) {
        PyErr_Format(PyExc_ValueError, "%zu buffers are needed", count);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(given, (Py_ssize_t)i);
        if (Py_TYPE(item) != device_buffer_type) {
            PyErr_SetString(PyExc_TypeError, "a slot takes a DeviceBuffer");
            return NULL;
        }
        slots[i] = device_memory(item);
    }
    return slots;
}

static PyObject *program_run(PyObject *object, PyObject *args)
{
    PluginProgram *self = (PluginProgram *)object;
    plugin_program *program = &self->program;
    plugin *p = ((Plugin *)self->owner)->plugin;
    PyObject *slots, *uploads, *downloads;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &slots, &PyTuple_Type, &uploads,
                          &PyTuple_Type, &downloads))
        return NULL;
    pool *memory = NULL;
    plugin_error error = {0};
    void **from = read_addresses(&memory, uploads, program->upload_count);
    void **to = from ? read_addresses(&memory, downloads, program->download_count) : NULL;
    plugin_buffer **held = to ? read_slots(&memory, slots, program->slot_count) : NULL;
    int failed = held == NULL ? -1 : 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS;
        plugin_lane *lane;
        failed = plugin_enter(p, held, program->kept_at, &lane, &error);
        if (!failed) {
            failed = plugin_run(lane, program, held, (const void *const *)from, to, &error);
            plugin_leave(lane);
        }
        Py_END_ALLOW_THREADS;
        if (failed)
            raise_plugin(&error);
    }
    pool_drop(&memory);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef program_methods[] = {
    {"run", program_run, METH_VARARGS,
     "run(slots, uploads, downloads): buffers of the slots, addresses to send and to fill"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_new, (void *)program_new},
    {Py_tp_dealloc, (void *)program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_doc, "PluginProgram(plugin, steps, uploads, downloads, arena, slots)"},
    {0, NULL},
};

PyType_Spec plugin_program_spec = {
    .name = "dovetail._native.PluginProgram",
    .basicsize = sizeof(PluginProgram),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = program_slots,
};
