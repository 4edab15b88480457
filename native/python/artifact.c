/* dovetail._native.Artifact: an open artifact, callable with tensors. */
#include "artifact.h"

#include <stdlib.h>

/* A flag of this module's own: tensors never have PyTorch's lazy sign or conjugation set, as
 * where Dynamo's guards see to it. Saves a call for each tensor. */
#define PLAIN_TENSORS (1u << 16)

static void *aligned_copy(const void *data, size_t size)
{
    void *copy = aligned_alloc(64, (size + 64) / 64 * 64);
    if (copy != NULL && size > 0)
        memcpy(copy, data, size);
    return copy;
}

/* The plug-ins as the runtime takes them; the artifact keeps the objects alive. */
static int set_plugins(Artifact *self, PyObject *plugins, dvt_open_options *options)
{
    Py_ssize_t count = plugins == NULL ? 0 : PyTuple_Size(plugins);
    if (count == 0)
        return 0;
    dvt_plugin **list = PyMem_Malloc((size_t)count * sizeof *list);
    options->plugins = list;
    options->plugin_count = (size_t)count;
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        list[i] = plugin_of(PyTuple_GetItem(plugins, i));
        if (list[i] == NULL)
            return -1;
    }
    self->plugins = Py_NewRef(plugins);
    return list == NULL ? (PyErr_NoMemory(), -1) : 0;
}

/* Opens an artifact of a Source, or of a path or bytes by way of one. */
static int open_artifact(Artifact *self, PyObject *given, const dvt_open_options *options,
                         dvt_error *error)
{
    PyObject *made = source_of(given) != NULL
                         ? Py_NewRef(given)
                         : PyObject_CallFunctionObjArgs((PyObject *)source_type, given, NULL);
    if (made == NULL)
        return -1;
    dvt_source *source = source_of(made);
    dvt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = dvt_open_source(source, options, &self->artifact, error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(made);
    return status == DVT_OK ? 0 : -1;
}

static PyObject *artifact_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source",  "flags",    "keys",       "host",
                            "plugins", "max_work", "max_memory", NULL};
    PyObject *source, *host = NULL, *plugins = NULL;
    unsigned int flags = 0;
    const char *keys = NULL;
    Py_ssize_t key_bytes = 0;
    unsigned long long max_work = 0, max_memory = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Iy#OO!KK", names, &source, &flags, &keys,
                                     &key_bytes, &host, &PyTuple_Type, &plugins, &max_work,
                                     &max_memory))
        return NULL;
    Artifact *self = (Artifact *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    dvt_open_options options = {.struct_size = sizeof options,
                                .flags = flags & ~PLAIN_TENSORS,
                                .keys = (const uint8_t (*)[32])(const void *)keys,
                                .key_count = (size_t)key_bytes / 32,
                                .host_free = aten_free_kept,
                                .max_work = max_work,
                                .max_memory = max_memory};
    dvt_error error = {0, ""};
    self->plain = (flags & PLAIN_TENSORS) != 0;
    options.host_available = host != NULL && host != Py_None;
    int failed = host_bind(&self->host, host) != 0 ||
                 set_plugins(self, plugins, &options) != 0 ||
                 open_artifact(self, source, &options, &error) != 0;
    PyMem_Free((void *)(uintptr_t)options.plugins);
    if (failed) {
        raise_error(&error);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void artifact_dealloc(PyObject *object)
{
    Artifact *self = (Artifact *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_BEGIN_ALLOW_THREADS; /* closing waits for a plug-in whose run may wait for Python */
    dvt_state_free(self->state);
    if (self->whole == NULL)
        dvt_close(self->artifact);
    Py_END_ALLOW_THREADS;
    host_unbind(&self->host);
    Py_XDECREF(self->plugins);
    Py_XDECREF((PyObject *)self->whole);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- what changes how it runs ---- */

static PyObject *artifact_measure(PyObject *object, PyObject *unused)
{
    (void)unused;
    dvt_error error = {0};
    dvt_status status = dvt_measure(((Artifact *)object)->artifact, &error);
    if (status != DVT_OK)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *artifact_use_code(PyObject *object, PyObject *code)
{
    dvt_error error = {0, ""};
    if (!PyBytes_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "code is bytes");
        return NULL;
    }
    size_t size = (size_t)PyBytes_Size(code);
    void *copy = aligned_copy(PyBytes_AsString(code), size);
    if (copy == NULL)
        return PyErr_NoMemory();
    dvt_status status = dvt_use_code(((Artifact *)object)->artifact, copy, size, &error);
    free(copy);
    if (status != DVT_OK) {
        raise_error(&error);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *artifact_plan_host(PyObject *object, PyObject *plans)
{
    Artifact *self = (Artifact *)object;
    return host_plan(host_of(self), plans, dvt_host_call_count(self->artifact));
}

static PyObject *artifact_host_counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    const host_binding *host = host_of((Artifact *)object);
    return Py_BuildValue("(KK)", atomic_load(&host->native), atomic_load(&host->python));
}

static PyMethodDef artifact_methods[] = {
    {"run", (PyCFunction)(void (*)(void))artifact_run, METH_FASTCALL,
     "run(*tensors) -> list of tensors: a call, a little faster"},
    {"run_on", artifact_run_on, METH_VARARGS,
     "run_on(tensors, stream or None, event or None) -> results; those that can lie on a "
     "device as (memory, code, bits, shape, strides)"},
    {"plugins", artifact_plugins, METH_NOARGS, "plugins() -> the plug-ins it was opened with"},
    {"plan_host", artifact_plan_host, METH_O,
     "plan_host(descriptions): which host calls go to libtorch; None: through Python"},
    {"host_counts", artifact_host_counts, METH_NOARGS,
     "host operations run so far: through libtorch's C functions, through Python"},
    {"measure", artifact_measure, METH_NOARGS,
     "measure(): have runs from now on measure their instructions; before the first"},
    {"use_code", artifact_use_code, METH_O,
     "use_code(section): run what was interpreted as code made of the verified kernel IR"},
    {"clone", artifact_clone, METH_NOARGS,
     "clone() -> the same artifact with a state of its own, now a copy of this one's"},
    {"states", artifact_states, METH_NOARGS,
     "(name, dtype code, bits, shape) of each buffer of state; shape None: it varies"},
    {"read_state", artifact_read_state, METH_O, "read_state(number) -> Tensor, a copy"},
    {"state_bytes", artifact_state_bytes, METH_O, "state_bytes(number) -> its elements"},
    {"write_state", artifact_write_state, METH_VARARGS,
     "write_state(number, tensor or what state_bytes() gave)"},
    {"reset_state", artifact_reset_state, METH_NOARGS, "all of the state as the file has it"},
    {"inputs", artifact_inputs, METH_NOARGS, "(name, dtype code, bits, shape) of each input"},
    {"outputs", artifact_outputs, METH_NOARGS, "the same for outputs; -1: a dynamic size"},
    {"section", artifact_section, METH_O, "a section's bytes by its kind, or None"},
    {"host_calls", artifact_host_calls, METH_NOARGS, "(operator, arguments) of each host call"},
    {"devices", artifact_devices, METH_NOARGS, "(plug-in, version, abi) of each device"},
    {"blobs", artifact_blobs, METH_NOARGS,
     "(owner, arguments, on a device, bytes, state) of each vendor blob"},
    {"cleared", artifact_cleared, METH_NOARGS,
     "cleared() -> bytes that each call clears because nothing was shown to write them"},
    {"names", artifact_names, METH_NOARGS, "names() -> what each instruction runs"},
    {"last_times", artifact_last_times, METH_NOARGS,
     "last_times() -> (start, taken) of each instruction in its last run, by the monotonic "
     "clock, in nanoseconds; (0, 0): not run, or not measured"},
    {"times", artifact_times, METH_NOARGS,
     "times() -> least nanoseconds of each instruction so far; 0: not run, or not measured"},
    {"padding", artifact_padding, METH_NOARGS,
     "padding() -> bytes of temporaries that are halos or fill blocks; last call"},
    {"memory", artifact_memory, METH_NOARGS,
     "arena bytes, their sum, the lower bound; last call"},
    {"signature", artifact_signature, METH_NOARGS,
     "1 trusted, 0 none, -1 by an unknown key, -2 of an old kind"},
    {"digest", artifact_digest, METH_NOARGS, "the digest that a signature of the file signs"},
    {"code_refusal", artifact_code_refusal, METH_NOARGS, "why native code was not loaded"},
    {"trusted", artifact_trusted, METH_NOARGS, "whether it may do what needs trust"},
    {"code", artifact_code, METH_NOARGS,
     "native code: 1 loaded, 0 none, -1 there but not used"},
    {"symbols", artifact_symbols, METH_NOARGS,
     "(name, input, axis or -1, least, most) of each dynamic size"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot artifact_slots[] = {
    {Py_tp_new, (void *)artifact_new},
    {Py_tp_dealloc, (void *)artifact_dealloc},
    {Py_tp_call, (void *)artifact_call},
    {Py_tp_methods, artifact_methods},
    {Py_tp_doc, "Artifact(source, flags=0, keys=b'', host=None, plugins=()): an artifact"},
    {0, NULL},
};

PyType_Spec artifact_spec = {
    .name = "dovetail._native.Artifact",
    .basicsize = sizeof(Artifact),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = artifact_slots,
};
