/* dovetail._native.Plugin and DeviceBuffer: a plug-in's library, its device and its memory.
 *
 * The plug-in's lock is taken only with the interpreter lock released or, in destructors, by a
 * thread that asks for nothing else, so neither waits for the other in a circle.
 */
#include "plugin_bindings.h"

#include <stdlib.h>

PyTypeObject *plugin_type, *device_buffer_type;

PyObject *raise_plugin(const plugin_error *error)
{
    static const char *const names[] = {
        [PLUGIN_OK] = "PluginFailed",       [PLUGIN_NOT_FOUND] = "PluginNotFound",
        [PLUGIN_INVALID] = "InvalidPlugin", [PLUGIN_INCOMPATIBLE] = "IncompatiblePlugin",
        [PLUGIN_FAILED] = "PluginFailed",   [PLUGIN_LOST] = "DeviceLost",
        [PLUGIN_MEMORY] = "OutOfMemory",    [PLUGIN_TIMEOUT] = "DeviceTimeout",
    };
    return raise_named(names[error->problem], "%s", error->message);
}

static void release_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- Plugin ---- */

struct dvt_plugin *plugin_of(PyObject *object)
{
    if (Py_TYPE(object) == plugin_type)
        return ((Plugin *)object)->plugin;
    PyErr_SetString(PyExc_TypeError, "a plug-in is a dovetail._native.Plugin");
    return NULL;
}

static PyObject *plugin_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "index", NULL};
    PyObject *path;
    int index = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|i", names, PyUnicode_FSConverter, &path,
                                     &index))
        return NULL;
    plugin_error error = {0};
    plugin *opened = NULL;
    const char *file = PyBytes_AsString(path);
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = plugin_open(file, index, &opened, &error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    if (failed)
        return raise_plugin(&error);
    Plugin *self = (Plugin *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL)
        self->plugin = opened;
    return (PyObject *)self;
}

static void plugin_dealloc(PyObject *object)
{
    Plugin *self = (Plugin *)object;
    if (self->plugin != NULL) {
        Py_BEGIN_ALLOW_THREADS; /* which a plug-in's own thread may need to log */
        plugin_close(self->plugin, NULL);
        plugin_drop(self->plugin);
        Py_END_ALLOW_THREADS;
    }
    release_object(object);
}

static PyObject *plugin_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvp_info *info = &((Plugin *)object)->plugin->info;
    return Py_BuildValue("(sssII)", info->name, info->version, info->device, info->abi,
                         info->flags);
}

static PyObject *answer_tuple(const dvp_answer *a)
{
    return Py_BuildValue("(NdzIIz)", PyBool_FromLong(a->supported == 1), a->cost, a->kernel,
                         a->min_version, a->max_version, a->reason);
}

static PyObject *plugin_query(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    plugin_step step = {0};
    pool *memory = NULL;
    dvp_answer answer;
    plugin_error error = {0};
    if (read_op(&memory, args, &step) != 0) {
        pool_drop(&memory);
        return NULL;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_query_op(p, &step.op, &answer, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    pool_drop(&memory);
    return failed ? raise_plugin(&error) : answer_tuple(&answer);
}

static PyObject *plugin_get_attribute(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    const char *name;
    int64_t value = 0;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_get(p, name, &value, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    return failed ? raise_plugin(&error) : PyLong_FromLongLong(value);
}

static PyObject *plugin_set_attribute(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    const char *name;
    long long value;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "sL", &name, &value))
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_set(p, name, value, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    return failed ? raise_plugin(&error) : Py_NewRef(Py_None);
}

static PyObject *plugin_set_timeout(PyObject *object, PyObject *args)
{
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds))
        return NULL;
    bool limited = seconds > 0 && seconds < 1e9;
    ((Plugin *)object)->plugin->timeout = limited ? (uint64_t)(seconds * 1e9) : 0;
    return Py_NewRef(Py_None);
}

static PyObject *plugin_set_graphs(PyObject *object, PyObject *wanted)
{
    int records = PyObject_IsTrue(wanted);
    if (records < 0)
        return NULL;
    ((Plugin *)object)->plugin->records = records;
    return Py_NewRef(Py_None);
}

static PyObject *plugin_torch_device(PyObject *object, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("z", ((Plugin *)object)->plugin->info.torch_device);
}

static PyObject *plugin_open_device(PyObject *object, PyObject *unused)
{
    (void)unused;
    plugin *p = ((Plugin *)object)->plugin;
    plugin_error error = {0};
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_ready(p, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    return failed ? raise_plugin(&error) : Py_NewRef(Py_None);
}

static PyObject *plugin_close_device(PyObject *object, PyObject *unused)
{
    (void)unused;
    plugin *p = ((Plugin *)object)->plugin;
    int64_t leaked;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    plugin_close(p, &leaked);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(leaked);
}

static PyObject *plugin_count(PyObject *object, PyObject *unused)
{
    (void)unused;
    const plugin_counters *c = &((Plugin *)object)->plugin->counters;
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsK}", "recorded", c->recorded, "replayed",
                         c->replayed, "uploads", c->uploads, "upload_bytes", c->upload_bytes,
                         "downloads", c->downloads, "download_bytes", c->download_bytes,
                         "kernels", c->kernels, "buffers", c->buffers, "peer_copies",
                         c->peer_copies, "peer_bytes", c->peer_bytes);
}

/* ---- DeviceBuffer ---- */

typedef struct {
    PyObject_HEAD PyObject *owner;
    plugin_buffer buffer;
} DeviceBuffer;

plugin_buffer *device_memory(PyObject *buffer)
{
    return &((DeviceBuffer *)buffer)->buffer;
}

static DeviceBuffer *new_buffer(PyObject *owner)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(device_buffer_type, Py_tp_alloc);
    DeviceBuffer *self = (DeviceBuffer *)alloc(device_buffer_type, 0);
    if (self != NULL) {
        self->owner = Py_NewRef(owner);
        self->buffer.lane = -1;
    }
    return self;
}

static PyObject *plugin_upload_new(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    unsigned long long address, bytes;
    int constant = 0;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "KK|p", &address, &bytes, &constant))
        return NULL;
    DeviceBuffer *self = new_buffer(object);
    if (self == NULL)
        return NULL;
    const void *from = (const void *)(uintptr_t)address;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    plugin_lane *lane;
    failed = plugin_enter(p, NULL, 0, &lane, &error);
    if (!failed) {
        failed = plugin_alloc(p, bytes, &self->buffer, &error) ||
                 plugin_upload(lane, &self->buffer, 0, from, bytes, &error) ||
                 plugin_sync(lane, &error);
        plugin_leave(lane);
    }
    Py_END_ALLOW_THREADS;
    self->buffer.constant = constant;
    if (!failed)
        return (PyObject *)self;
    Py_DECREF(self);
    return raise_plugin(&error);
}

static PyObject *plugin_alloc_new(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    unsigned long long bytes;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "K", &bytes))
        return NULL;
    DeviceBuffer *self = new_buffer(object);
    if (self == NULL)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    plugin_lane *lane;
    failed = plugin_enter(p, NULL, 0, &lane, &error);
    if (!failed) {
        failed = plugin_alloc(p, bytes, &self->buffer, &error);
        lane->given--; /* it was given nothing to wait for */
        plugin_leave(lane);
    }
    Py_END_ALLOW_THREADS;
    if (!failed)
        return (PyObject *)self;
    Py_DECREF(self);
    return raise_plugin(&error);
}

static void device_buffer_dealloc(PyObject *object)
{
    DeviceBuffer *self = (DeviceBuffer *)object;
    plugin_free(((Plugin *)self->owner)->plugin, &self->buffer); /* which calls nothing yet */
    Py_DECREF(self->owner);
    release_object(object);
}

/* A buffer that is dead, or whose computation failed, is not read. */
static int check_alive(const plugin *p, const plugin_buffer *buffer, plugin_error *error)
{
    if (plugin_is_alive(p, buffer))
        return 0;
    return plugin_problem_is(
        error, PLUGIN_LOST,
        "a value on the device of plug-in '%s' is lost: the device was, or "
        "what computed it failed",
        p->info.name);
}

static PyObject *device_buffer_fetch(PyObject *object, PyObject *args)
{
    DeviceBuffer *self = (DeviceBuffer *)object;
    plugin *p = ((Plugin *)self->owner)->plugin;
    unsigned long long address, offset, bytes;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "KKK", &address, &offset, &bytes))
        return NULL;
    if (offset > self->buffer.bytes || bytes > self->buffer.bytes - offset) {
        PyErr_SetString(PyExc_ValueError, "more than the buffer holds");
        return NULL;
    }
    plugin_buffer *source = &self->buffer;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    plugin_lane *lane;
    failed = plugin_enter(p, &source, 1, &lane, &error);
    if (!failed) {
        failed =
            check_alive(p, source, &error) ||
            plugin_download(lane, (void *)(uintptr_t)address, source, offset, bytes, &error) ||
            plugin_sync(lane, &error);
        plugin_leave(lane);
    }
    Py_END_ALLOW_THREADS;
    return failed ? raise_plugin(&error) : Py_NewRef(Py_None);
}

/* to(plugin): a copy on another device; None where that takes the way over the host. */
static PyObject *device_buffer_to(PyObject *object, PyObject *args)
{
    DeviceBuffer *self = (DeviceBuffer *)object;
    PyObject *owner;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "O!", plugin_type, &owner))
        return NULL;
    plugin *from = ((Plugin *)self->owner)->plugin, *to = ((Plugin *)owner)->plugin;
    if (from == to || !from->parallel || !to->parallel) /* two locks at once would be held */
        return Py_NewRef(Py_None);
    DeviceBuffer *made = new_buffer(owner);
    if (made == NULL)
        return NULL;
    plugin_buffer *source = &self->buffer;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    plugin_lane *reading, *lane;
    failed = plugin_enter(from, &source, 1, &reading, &error);
    if (!failed) {
        failed = check_alive(from, source, &error) || plugin_sync(reading, &error);
        if (!failed && (failed = plugin_enter(to, NULL, 0, &lane, &error)) == 0) {
            failed = plugin_alloc(to, source->bytes, &made->buffer, &error);
            if (!failed)
                failed = plugin_copy_peer(lane, &made->buffer, from, source, &error);
            if (!failed)
                failed = plugin_sync(lane, &error);
            plugin_leave(lane);
        }
        plugin_leave(reading);
    }
    Py_END_ALLOW_THREADS;
    if (failed == 0)
        return (PyObject *)made;
    Py_DECREF(made);
    return failed > 0 ? Py_NewRef(Py_None) : raise_plugin(&error);
}

static PyObject *plugin_describe_device(PyObject *object, PyObject *unused)
{
    (void)unused;
    plugin *p = ((Plugin *)object)->plugin;
    plugin_error error = {0};
    dvp_device_info info = {0};
    uint32_t count = p->info.device_count > 0 ? p->info.device_count : 1;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = plugin_describe(p, &info, &error);
    Py_END_ALLOW_THREADS;
    if (failed)
        return raise_plugin(&error);
    return Py_BuildValue("{sIsisssKsIsN}", "devices", count, "index", p->index, "name",
                         info.name ? info.name : p->info.device, "memory", info.memory_bytes,
                         "alignment", info.alignment, "parallel", PyBool_FromLong(p->parallel));
}

static PyObject *device_buffer_alive(PyObject *object, PyObject *unused)
{
    (void)unused;
    DeviceBuffer *self = (DeviceBuffer *)object;
    const plugin *p = ((Plugin *)self->owner)->plugin;
    return PyBool_FromLong(plugin_is_alive(p, &self->buffer));
}

static PyMethodDef device_buffer_methods[] = {
    {"alive", device_buffer_alive, METH_NOARGS, "Whether the device still has this memory."},
    {"fetch", device_buffer_fetch, METH_VARARGS,
     "fetch(address, offset, bytes): copy to host memory, once it is computed"},
    {"to", device_buffer_to, METH_VARARGS,
     "to(plugin) -> a copy on that device, or None: only over the host"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot device_buffer_slots[] = {
    {Py_tp_dealloc, (void *)device_buffer_dealloc},
    {Py_tp_methods, device_buffer_methods},
    {Py_tp_doc, "Memory on a plug-in's device, freed with this object."},
    {0, NULL},
};

PyType_Spec device_buffer_spec = {
    .name = "dovetail._native.DeviceBuffer",
    .basicsize = sizeof(DeviceBuffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = device_buffer_slots,
};

static PyMethodDef plugin_methods[] = {
    {"info", plugin_info, METH_NOARGS, "info() -> (name, version, device, abi, flags)"},
    {"query", plugin_query, METH_VARARGS,
     "query(op, inputs, outputs, attributes) -> (supported, cost, kernel, min, max, reason)"},
    {"get", plugin_get_attribute, METH_VARARGS, "get(name) -> an attribute of the device"},
    {"set", plugin_set_attribute, METH_VARARGS, "set(name, value)"},
    {"upload", plugin_upload_new, METH_VARARGS,
     "upload(address, bytes, constant=False) -> DeviceBuffer"},
    {"alloc", plugin_alloc_new, METH_VARARGS, "alloc(bytes) -> DeviceBuffer"},
    {"describe", plugin_describe_device, METH_NOARGS, "describe() -> the device, in a dict"},
    {"compile", plugin_compile_segment, METH_VARARGS,
     "compile(tensors, bases, ops, inputs, outputs) -> bytes, or None: kernel by kernel"},
    {"pack", plugin_pack_constant, METH_VARARGS,
     "pack(description, input, data, offset) -> bytes, or None: it stays as it is"},
    {"blob_state", plugin_blob_state, METH_VARARGS,
     "blob_state(blob) -> 0 optimal, 1 usable, 2 better recompiled, 3 unsupported"},
    {"counters", plugin_count, METH_NOARGS, "counters() -> what crossed the interface so far"},
    {"set_timeout", plugin_set_timeout, METH_VARARGS,
     "set_timeout(seconds) that a stream is waited for; 0: for ever"},
    {"torch_device", plugin_torch_device, METH_NOARGS,
     "torch_device() -> PyTorch's device whose memory is this one's, or None"},
    {"set_graphs", plugin_set_graphs, METH_O,
     "set_graphs(wanted): whether work that comes again is recorded and replayed"},
    {"open", plugin_open_device, METH_NOARGS, "open() the device if it is not open"},
    {"close", plugin_close_device, METH_NOARGS,
     "close() -> bytes leaked; the next use opens the device again"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot plugin_slots[] = {
    {Py_tp_new, (void *)plugin_new},
    {Py_tp_dealloc, (void *)plugin_dealloc},
    {Py_tp_methods, plugin_methods},
    {Py_tp_doc, "Plugin(path): a library that implements dovetail_plugin.h"},
    {0, NULL},
};

PyType_Spec plugin_spec = {
    .name = "dovetail._native.Plugin",
    .basicsize = sizeof(Plugin),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = plugin_slots,
};
