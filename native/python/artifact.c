/* dovetail._native.Artifact: an open artifact, callable with tensors. */
#include "host.h"
#include "trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define FEW 16
/* A flag of this module's own: tensors never have PyTorch's lazy sign or conjugation set, as
 * where Dynamo's guards see to it. Saves a call for each tensor. */
#define PLAIN_TENSORS (1u << 16)

typedef struct {
    PyObject_HEAD dvt_artifact *artifact;
    bool plain; /* opened with PLAIN_TENSORS */
    host_binding host;
    PyObject *plugins; /* a tuple: the artifact runs on their devices */
} Artifact;

/* ---- errors ---- */

PyObject *raise_named(const char *name, const char *format, ...)
{
    char message[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    PyObject *errors = PyImport_ImportModule("dovetail.errors");
    PyObject *cls = errors ? PyObject_GetAttrString(errors, name) : NULL;
    /* A message is cut at a number of bytes, which may fall within a character. */
    PyObject *text =
        cls ? PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace") : NULL;
    if (text != NULL)
        PyErr_SetObject(cls, text);
    Py_XDECREF(text);
    Py_XDECREF(cls);
    Py_XDECREF(errors);
    return NULL;
}

PyObject *raise_error(const dvt_error *error)
{
    static const char *const names[] = {
        [DVT_OK] = "RunFailed",
        [DVT_ERROR_MALFORMED] = "InvalidArtifact",
        [DVT_ERROR_OVERFLOW] = "SizeError",
        [DVT_ERROR_DIVIDE_BY_ZERO] = "SizeError",
        [DVT_ERROR_IO] = "ArtifactNotFound",
        [DVT_ERROR_UNSUPPORTED] = "UnsupportedArtifact",
        [DVT_ERROR_GUARD] = "GuardFailed",
        [DVT_ERROR_MEMORY] = "OutOfMemory",
        [DVT_ERROR_UNTRUSTED] = "UntrustedArtifact",
        [DVT_ERROR_INDEX] = "IndexOutOfRange",
        [DVT_ERROR_HOST] = "RunFailed",
        [DVT_ERROR_ARGUMENT] = "RunFailed",
        [DVT_ERROR_BOUNDS] = "IndexOutOfBounds",
        [DVT_ERROR_CANCELLED] = "RunFailed",
        [DVT_ERROR_LIMIT] = "LimitExceeded",
        [DVT_ERROR_DIVISOR] = "DividedByZero",
        [DVT_ERROR_CHANGED] = "ArtifactChanged",
        [DVT_ERROR_PLUGIN_MISSING] = "PluginNotFound",
        [DVT_ERROR_PLUGIN_INVALID] = "InvalidPlugin",
        [DVT_ERROR_PLUGIN_INCOMPATIBLE] = "IncompatiblePlugin",
        [DVT_ERROR_PLUGIN_FAILED] = "PluginFailed",
        [DVT_ERROR_DEVICE_LOST] = "DeviceLost",
    };
    if (PyErr_Occurred()) /* a host operation's own exception says more */
        return NULL;
    size_t status = (size_t)error->status;
    bool known = status < sizeof names / sizeof *names && names[status] != NULL;
    return raise_named(known ? names[status] : "RunFailed", "%s", error->message);
}

/* ---- opening ---- */

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
    dvt_close(self->artifact);
    host_unbind(&self->host);
    Py_XDECREF(self->plugins);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- calling ---- */

/* A result as the framework's own tensor, as a NumPy array, or as ours. */
static PyObject *hand_out(dvt_managed *managed, const exchange_api *api, bool as_array)
{
    static PyObject *asarray;
    if (api != NULL) {
        void *made = NULL;
        if (api->object_from_managed(managed, &made) == 0)
            return made;
        managed->deleter(managed);
        return NULL;
    }
    PyObject *tensor = wrap_managed(managed);
    if (tensor == NULL || !as_array)
        return tensor;
    if (asarray == NULL) {
        /* Only where NumPy is in use: importing it takes longer than everything else here. */
        PyObject *modules = PySys_GetObject("modules");
        PyObject *numpy = modules ? PyDict_GetItemString(modules, "numpy") : NULL;
        asarray = numpy && numpy != Py_None ? PyObject_GetAttrString(numpy, "asarray") : NULL;
        PyErr_Clear();
    }
    if (asarray == NULL)
        return tensor;
    PyObject *array = PyObject_CallFunctionObjArgs(asarray, tensor, NULL);
    Py_DECREF(tensor);
    return array;
}

static PyObject *collect(dvt_managed **outputs, size_t count, const exchange_api *api,
                         bool as_array)
{
    PyObject *results = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count; i++) {
        PyObject *result = results ? hand_out(outputs[i], api, as_array) : NULL;
        if (results == NULL)
            outputs[i]->deleter(outputs[i]);
        else if (result == NULL || PyList_SetItem(results, (Py_ssize_t)i, result) != 0)
            Py_CLEAR(results);
    }
    return results;
}

typedef struct {
    argument few[FEW];
    argument *arguments;
    dvt_tensor few_tensors[FEW];
    dvt_tensor *tensors;
    dvt_managed *few_outputs[FEW];
    dvt_managed **outputs;
    const exchange_api *api; /* of the last argument that offers it */
    bool as_array;           /* whether an argument came by the buffer protocol */
    bool failed;
} call_state;

/* Reads the arguments; returns how many were, all of them unless an exception is set. */
static size_t read_arguments(const Artifact *self, PyObject *const *args, size_t given,
                             call_state *s)
{
    size_t read = 0;
    bool writes = dvt_writes_inputs(self->artifact), failed = false;
    for (; read < given && !failed; read++) {
        argument *a = &s->arguments[read];
        a->api = NULL;
        a->capsule = a->resolved = NULL;
        a->through_buffer = a->read_only = false;
        a->tensor.byte_offset = 0;
        failed = read_argument(args[read], a, self->plain) != 0;
        s->tensors[read] = a->tensor;
        s->api = a->api != NULL ? a->api : s->api;
        s->as_array = s->as_array || a->through_buffer;
        if (!failed && a->read_only && writes) {
            raise_named("GuardFailed", "argument %zu is read-only, and the model writes to it",
                        read);
            failed = true;
        }
    }
    if (failed && !PyErr_Occurred())
        raise_named("GuardFailed", "an argument cannot be read as a tensor");
    s->failed = failed;
    return read;
}

/* Asked by a run every so often: signal handlers of Python run in its main thread only, and
 * that is busy here. */
static int check_signals(void *context)
{
    PyThreadState **released = context;
    PyEval_RestoreThread(*released);
    int raised = PyErr_CheckSignals();
    *released = PyEval_SaveThread();
    return raised;
}

static PyObject *run_call(Artifact *self, PyObject *const *args, size_t given, size_t results,
                          call_state *s)
{
    dvt_error error;
    PyObject *made = NULL;
    size_t read = read_arguments(self, args, given, s);
    if (given == 0 && self->host.plan_count > 0)
        s->api = self->host.api; /* nothing says what kind of tensors are wanted: the host's */
    if (!s->failed) {
        PyThreadState *released;
        dvt_run_options options = {.struct_size = sizeof options,
                                   .host = self->host.call ? host_call : NULL,
                                   .host_context = &self->host,
                                   .poll = check_signals,
                                   .poll_context = &released};
        tracing trace = {self->artifact, &released, NULL};
        if (profiler_runs()) {
            options.trace = trace_instruction;
            options.trace_context = &trace;
        }
        dvt_status status;
        error.status = DVT_OK;
        error.message[0] = 0;
        released = PyEval_SaveThread();
        if (self->host.follows_torch)
            options.threads = aten_threads();
        bool gradients = self->host.plan_count > 0 && aten_grad_off();
        status =
            dvt_run(self->artifact, &options, s->tensors, given, s->outputs, results, &error);
        aten_grad_on(gradients);
        PyEval_RestoreThread(released);
        trace_end(&trace);
        if (status == DVT_OK)
            made = collect(s->outputs, results, s->api, s->as_array);
        else
            raise_error(&error); /* not where a signal handler has raised */
    }
    for (size_t i = 0; i < read; i++)
        release_argument(&s->arguments[i]);
    return made;
}

static PyObject *run_tensors(Artifact *self, PyObject *const *args, size_t given)
{
    size_t results = dvt_output_count(self->artifact);
    call_state s;
    s.api = NULL;
    s.as_array = false;
    s.arguments = given <= FEW ? s.few : PyMem_Malloc(given * sizeof *s.arguments);
    s.tensors = given <= FEW ? s.few_tensors : PyMem_Malloc(given * sizeof *s.tensors);
    s.outputs = results <= FEW ? s.few_outputs : PyMem_Malloc(results * sizeof *s.outputs);
    PyObject *made = NULL;
    if (s.arguments == NULL || s.tensors == NULL || s.outputs == NULL)
        PyErr_NoMemory();
    else
        made = run_call(self, args, given, results, &s);
    if (s.arguments != s.few)
        PyMem_Free(s.arguments);
    if (s.tensors != s.few_tensors)
        PyMem_Free(s.tensors);
    if (s.outputs != s.few_outputs)
        PyMem_Free(s.outputs);
    return made;
}

/* run(*tensors): the same as a call, without the tuple that a call needs. */
static PyObject *artifact_run(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Artifact *self = (Artifact *)object;
    if (self->host.plan_count > 0) {
        PyObject *made = NULL;
        if (host_without_autocast(&self->host, object, args, given, &made) != 0)
            return made;
    }
    return run_tensors(self, args, (size_t)given);
}

static PyObject *artifact_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t given = PyTuple_Size(args);
    if (kwargs != NULL && PyDict_Size(kwargs) > 0)
        return raise_named("GuardFailed", "tensors are passed by position here");
    PyObject *few[FEW], *made = NULL;
    PyObject **list = given <= FEW ? few : PyMem_Malloc((size_t)given * sizeof *list);
    if (list == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < given; i++)
        list[i] = PyTuple_GetItem(args, i);
    made = artifact_run(object, list, given);
    if (list != few)
        PyMem_Free(list);
    return made;
}

/* ---- what an artifact is ---- */

/* Text of a file, which may be none: then it becomes text that names nothing. */
static PyObject *text_of(const char *text, size_t length)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
}

static PyObject *infos(const dvt_artifact *artifact,
                       const dvt_tensor_info *(*get)(const dvt_artifact *, size_t))
{
    PyObject *list = PyList_New(0);
    const dvt_tensor_info *info;
    for (size_t i = 0; list != NULL && (info = get(artifact, i)) != NULL; i++) {
        PyObject *shape = number_tuple(info->shape, info->ndim);
        PyObject *row = shape ? Py_BuildValue("(NiiN)", text_of(info->name, strlen(info->name)),
                                              info->dtype.code, info->dtype.bits, shape)
                              : NULL;
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *artifact_inputs(PyObject *object, PyObject *unused)
{
    (void)unused;
    return infos(((Artifact *)object)->artifact, dvt_input_info);
}

static PyObject *artifact_outputs(PyObject *object, PyObject *unused)
{
    (void)unused;
    return infos(((Artifact *)object)->artifact, dvt_output_info);
}

static PyObject *artifact_section(PyObject *object, PyObject *kind)
{
    unsigned long number = PyLong_AsUnsignedLong(kind);
    if (number == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    size_t size = 0;
    const char *data = dvt_section(((Artifact *)object)->artifact,
                                   number > UINT32_MAX ? UINT32_MAX : (uint32_t)number, &size);
    if (data == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
}

static PyObject *artifact_host_calls(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_host_call call;
    for (size_t i = 0; list != NULL && dvt_host_call_at(artifact, i, &call) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NN)", text_of(call.op, call.op_length),
                                      text_of(call.arguments, call.arguments_length));
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *artifact_devices(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_device_info info = {.struct_size = sizeof info};
    for (size_t i = 0; list != NULL && dvt_device_at(artifact, i, &info) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NNI)", text_of(info.name, strlen(info.name)),
                                      text_of(info.version, strlen(info.version)), info.abi);
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *artifact_blobs(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    PyObject *list = PyList_New(0);
    dvt_blob_info b = {.struct_size = sizeof b};
    for (size_t i = 0; list != NULL && dvt_blob_at(artifact, i, &b) == DVT_OK; i++) {
        PyObject *row = Py_BuildValue("(NNNy#i)", text_of(b.owner, b.owner_length),
                                      text_of(b.arguments, b.arguments_length),
                                      PyBool_FromLong((long)b.on_device), (const char *)b.data,
                                      (Py_ssize_t)b.size, (int)b.state);
        if (row == NULL || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *artifact_cleared(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dvt_cleared_bytes(((Artifact *)object)->artifact));
}

static PyObject *artifact_padding(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dvt_padding_bytes(((Artifact *)object)->artifact));
}

static PyObject *artifact_measure(PyObject *object, PyObject *unused)
{
    (void)unused;
    dvt_error error = {0};
    dvt_status status = dvt_measure(((Artifact *)object)->artifact, &error);
    if (status != DVT_OK)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *artifact_names(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *names = PyList_New(count);
    for (uint32_t i = 0; names != NULL && i < count; i++) {
        size_t length;
        const char *text = dvt_instruction_name(artifact, i, &length);
        PyObject *name = text_of(text, length);
        if (name == NULL || PyList_SetItem(names, i, name) != 0)
            Py_CLEAR(names);
    }
    return names;
}

static PyObject *artifact_last_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *times = PyList_New(count);
    for (uint32_t i = 0; times != NULL && i < count; i++) {
        uint64_t start, taken;
        dvt_last_time(artifact, i, &start, &taken);
        PyObject *row =
            Py_BuildValue("(KK)", (unsigned long long)start, (unsigned long long)taken);
        if (row == NULL || PyList_SetItem(times, i, row) != 0)
            Py_CLEAR(times);
    }
    return times;
}

static PyObject *artifact_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dvt_artifact *artifact = ((Artifact *)object)->artifact;
    uint32_t count = dvt_instruction_count(artifact);
    PyObject *times = PyList_New(count);
    for (uint32_t i = 0; times != NULL && i < count; i++) {
        PyObject *time = PyLong_FromUnsignedLongLong(dvt_least_time(artifact, i));
        if (time == NULL || PyList_SetItem(times, i, time) != 0)
            Py_CLEAR(times);
    }
    return times;
}

static PyObject *artifact_memory(PyObject *object, PyObject *unused)
{
    (void)unused;
    dvt_memory memory;
    dvt_memory_used(((Artifact *)object)->artifact, &memory);
    return Py_BuildValue("(KKK)", (unsigned long long)memory.peak,
                         (unsigned long long)memory.total, (unsigned long long)memory.bound);
}

static PyObject *artifact_signature(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_signature_state(((Artifact *)object)->artifact));
}

static PyObject *artifact_trusted(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dvt_trusted(((Artifact *)object)->artifact));
}

static PyObject *artifact_digest(PyObject *object, PyObject *unused)
{
    (void)unused;
    uint8_t digest[32];
    dvt_content_digest(((Artifact *)object)->artifact, digest);
    return PyBytes_FromStringAndSize((const char *)digest, sizeof digest);
}

static PyObject *artifact_code_refusal(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_code_refusal(((Artifact *)object)->artifact));
}

static PyObject *artifact_code(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(dvt_code_state(((Artifact *)object)->artifact));
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
    return host_plan(&self->host, plans, dvt_host_call_count(self->artifact));
}

static PyObject *artifact_host_counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    const host_binding *host = &((Artifact *)object)->host;
    return Py_BuildValue("(KK)", atomic_load(&host->native), atomic_load(&host->python));
}

static PyMethodDef artifact_methods[] = {
    {"run", (PyCFunction)(void (*)(void))artifact_run, METH_FASTCALL,
     "run(*tensors) -> list of tensors: a call, a little faster"},
    {"inputs", artifact_inputs, METH_NOARGS, "(name, dtype code, bits, shape) of each input"},
    {"outputs", artifact_outputs, METH_NOARGS, "the same for outputs; -1: a dynamic size"},
    {"section", artifact_section, METH_O, "a section's bytes by its kind, or None"},
    {"host_calls", artifact_host_calls, METH_NOARGS, "(operator, arguments) of each host call"},
    {"devices", artifact_devices, METH_NOARGS, "(plug-in, version, abi) of each device"},
    {"blobs", artifact_blobs, METH_NOARGS,
     "(owner, arguments, on a device, bytes, state) of each vendor blob"},
    {"plan_host", artifact_plan_host, METH_O,
     "plan_host(descriptions): which host calls go to libtorch; None: through Python"},
    {"host_counts", artifact_host_counts, METH_NOARGS,
     "host operations run so far: through libtorch's C functions, through Python"},
    {"cleared", artifact_cleared, METH_NOARGS,
     "cleared() -> bytes that each call clears because nothing was shown to write them"},
    {"padding", artifact_padding, METH_NOARGS,
     "padding() -> bytes of temporaries that are halos or fill blocks; last call"},
    {"measure", artifact_measure, METH_NOARGS,
     "measure(): have runs from now on measure their instructions; before the first"},
    {"names", artifact_names, METH_NOARGS, "names() -> what each instruction runs"},
    {"last_times", artifact_last_times, METH_NOARGS,
     "last_times() -> (start, taken) of each instruction in its last run, by the monotonic "
     "clock, in nanoseconds; (0, 0): not run, or not measured"},
    {"times", artifact_times, METH_NOARGS,
     "times() -> least nanoseconds of each instruction so far; 0: not run, or not measured"},
    {"memory", artifact_memory, METH_NOARGS,
     "arena bytes, their sum, the lower bound; last call"},
    {"signature", artifact_signature, METH_NOARGS,
     "1 trusted, 0 none, -1 by an unknown key, -2 of an old kind"},
    {"digest", artifact_digest, METH_NOARGS, "the digest that a signature of the file signs"},
    {"code_refusal", artifact_code_refusal, METH_NOARGS, "why native code was not loaded"},
    {"trusted", artifact_trusted, METH_NOARGS, "whether it may do what needs trust"},
    {"use_code", artifact_use_code, METH_O,
     "use_code(section): run what was interpreted as code made of the verified kernel IR"},
    {"code", artifact_code, METH_NOARGS,
     "native code: 1 loaded, 0 none, -1 there but not used"},
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
