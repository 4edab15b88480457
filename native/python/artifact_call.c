/* Calling an artifact: tensors in, tensors out. */
#include "artifact.h"
#include "trace.h"

#define FEW 16

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

dvt_status artifact_run_native(Artifact *self, const dvt_tensor *tensors, size_t given,
                               dvt_managed **outputs, size_t results, const run_place *place,
                               dvt_error *error)
{
    PyThreadState *released;
    host_binding *host = host_of(self);
    dvt_run_options options = {.struct_size = sizeof options,
                               .host = host->call ? host_call : NULL,
                               .host_context = host,
                               .poll = check_signals,
                               .poll_context = &released,
                               .state = self->state};
    if (place != NULL) {
        options.results = place->results;
        options.stream = place->stream;
        options.done = place->done;
    }
    tracing trace = {self->artifact, &released, NULL};
    if (profiler_runs()) {
        options.trace = trace_instruction;
        options.trace_context = &trace;
    }
    error->status = DVT_OK;
    error->message[0] = 0;
    released = PyEval_SaveThread();
    if (host->follows_torch)
        options.threads = aten_threads();
    bool gradients = host->plan_count > 0 && aten_grad_off();
    dvt_status status =
        dvt_run(self->artifact, &options, tensors, given, outputs, results, error);
    aten_grad_on(gradients);
    PyEval_RestoreThread(released);
    trace_end(&trace);
    return status;
}

static PyObject *run_call(Artifact *self, PyObject *const *args, size_t given, size_t results,
                          call_state *s)
{
    dvt_error error;
    PyObject *made = NULL;
    const host_binding *host = host_of(self);
    size_t read = read_arguments(self, args, given, s);
    if (given == 0 && host->plan_count > 0)
        s->api = host->api; /* nothing says what kind of tensors are wanted: the host's */
    if (!s->failed) {
        if (artifact_run_native(self, s->tensors, given, s->outputs, results, NULL, &error) ==
            DVT_OK)
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
PyObject *artifact_run(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Artifact *self = (Artifact *)object;
    const host_binding *host = host_of(self);
    if (host->plan_count > 0) {
        PyObject *made = NULL;
        if (host_without_autocast(host, object, args, given, &made) != 0)
            return made;
    }
    return run_tensors(self, args, (size_t)given);
}

PyObject *artifact_call(PyObject *object, PyObject *args, PyObject *kwargs)
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
