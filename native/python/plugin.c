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
        [PLUGIN_MEMORY] = "OutOfMemory",
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
    static char *names[] = {"path", NULL};
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&", names, PyUnicode_FSConverter, &path))
        return NULL;
    plugin_error error = {0};
    plugin *opened = NULL;
    int failed = plugin_open(PyBytes_AsString(path), &opened, &error);
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
        plugin_close(self->plugin, NULL);
        dvt_lock_destroy(&self->plugin->lock);
        free(self->plugin);
    }
    release_object(object);
}

static PyObject *plugin_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvp_info *info = &((Plugin *)object)->plugin->info;
    return Py_BuildValue("(sssI)", info->name, info->version, info->device, info->abi);
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
    return Py_BuildValue("{sKsKsKsKsKsK}", "uploads", c->uploads, "upload_bytes",
                         c->upload_bytes, "downloads", c->downloads, "download_bytes",
                         c->download_bytes, "kernels", c->kernels, "buffers", c->buffers);
}

/* ---- DeviceBuffer ---- */

typedef struct {
    PyObject_HEAD PyObject *owner;
    plugin_buffer buffer;
} DeviceBuffer;

const plugin_buffer *device_memory(PyObject *buffer)
{
    return &((DeviceBuffer *)buffer)->buffer;
}

static PyObject *plugin_upload_new(PyObject *object, PyObject *args)
{
    plugin *p = ((Plugin *)object)->plugin;
    unsigned long long address, bytes;
    plugin_error error = {0};
    if (!PyArg_ParseTuple(args, "KK", &address, &bytes))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(device_buffer_type, Py_tp_alloc);
    DeviceBuffer *self = (DeviceBuffer *)alloc(device_buffer_type, 0);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(object);
    const void *from = (const void *)(uintptr_t)address;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    dvt_lock_take(&p->lock);
    failed = plugin_alloc(p, bytes, &self->buffer, &error) ||
             plugin_upload(p, &self->buffer, 0, from, bytes, &error) || plugin_sync(p, &error);
    dvt_lock_give(&p->lock);
    Py_END_ALLOW_THREADS;
    if (!failed)
        return (PyObject *)self;
    Py_DECREF(self);
    return raise_plugin(&error);
}

static void device_buffer_dealloc(PyObject *object)
{
    DeviceBuffer *self = (DeviceBuffer *)object;
    plugin *p = ((Plugin *)self->owner)->plugin;
    dvt_lock_take(&p->lock);
    plugin_free(p, &self->buffer);
    dvt_lock_give(&p->lock);
    Py_DECREF(self->owner);
    release_object(object);
}

static PyObject *device_buffer_alive(PyObject *object, PyObject *unused)
{
    (void)unused;
    DeviceBuffer *self = (DeviceBuffer *)object;
    const plugin *p = ((Plugin *)self->owner)->plugin;
    return PyBool_FromLong(self->buffer.generation == p->generation);
}

static PyMethodDef device_buffer_methods[] = {
    {"alive", device_buffer_alive, METH_NOARGS, "Whether the device still has this memory."},
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
    {"info", plugin_info, METH_NOARGS, "info() -> (name, version, device, abi)"},
    {"query", plugin_query, METH_VARARGS,
     "query(op, inputs, outputs, attributes) -> (supported, cost, kernel, min, max, reason)"},
    {"get", plugin_get_attribute, METH_VARARGS, "get(name) -> an attribute of the device"},
    {"set", plugin_set_attribute, METH_VARARGS, "set(name, value)"},
    {"upload", plugin_upload_new, METH_VARARGS, "upload(address, bytes) -> DeviceBuffer"},
    {"compile", plugin_compile_segment, METH_VARARGS,
     "compile(tensors, bases, ops, inputs, outputs) -> bytes, or None: kernel by kernel"},
    {"blob_state", plugin_blob_state, METH_VARARGS,
     "blob_state(blob) -> 0 optimal, 1 usable, 2 better recompiled, 3 unsupported"},
    {"counters", plugin_count, METH_NOARGS, "counters() -> what crossed the interface so far"},
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
