/* dovetail._native: the runtime as a Python extension, on the stable ABI (3.11). */
#include "aten.h"
#include "bindings.h"
#include "gpu.h"
#include "plugin_bindings.h"
#include "trace.h"

typedef struct {
    PyObject_HEAD dvt_size_instruction *code;
    Py_ssize_t count;
    Py_ssize_t symbols;
    Py_ssize_t outputs;
} SizeProgram;

static PyObject *size_program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "symbols", "outputs", NULL};
    const char *data;
    Py_ssize_t bytes, symbols, outputs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#nn", names, &data, &bytes, &symbols,
                                     &outputs))
        return NULL;
    if (bytes % (Py_ssize_t)sizeof(dvt_size_instruction) || symbols < 0 || outputs < 0 ||
        symbols > PY_SSIZE_T_MAX / 32 || outputs > PY_SSIZE_T_MAX / 32) {
        PyErr_SetString(PyExc_ValueError, dvt_status_text(DVT_ERROR_MALFORMED));
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SizeProgram *self = (SizeProgram *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->count = bytes / (Py_ssize_t)sizeof(dvt_size_instruction);
    self->symbols = symbols;
    self->outputs = outputs;
    self->code = PyMem_Malloc(bytes > 0 ? (size_t)bytes : 1);
    if (self->code == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->code, data, (size_t)bytes);
    if (dvt_size_verify(self->code, (size_t)self->count, (size_t)symbols, (size_t)outputs) !=
        DVT_OK) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, dvt_status_text(DVT_ERROR_MALFORMED));
        return NULL;
    }
    return (PyObject *)self;
}

static void size_program_dealloc(PyObject *object)
{
    SizeProgram *self = (SizeProgram *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(self->code);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Reads the symbols' values; 0 on success. A value's __index__ may run any code, this program's
 * too, so nothing is kept in the program. */
static int read_symbols(const SizeProgram *self, PyObject *values, int64_t *to)
{
    Py_ssize_t given = PySequence_Size(values);
    if (given < 0)
        return -1;
    if (given != self->symbols) {
        PyErr_Format(PyExc_ValueError, "the size program takes %zd symbols, not %zd",
                     self->symbols, given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        PyObject *item = PySequence_GetItem(values, i);
        if (item == NULL)
            return -1;
        long long value = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (value == -1 && PyErr_Occurred())
            return -1;
        to[i] = value;
    }
    return 0;
}

static PyObject *compute_sizes(const SizeProgram *self, PyObject *values, int64_t *symbols)
{
    if (read_symbols(self, values, symbols) != 0)
        return NULL;
    int64_t *outputs = symbols + self->symbols;
    dvt_status status = dvt_size_run(self->code, (size_t)self->count, symbols, outputs);
    if (status != DVT_OK) {
        PyErr_SetString(PyExc_ArithmeticError, dvt_status_text(status));
        return NULL;
    }
    PyObject *result = PyTuple_New(self->outputs);
    for (Py_ssize_t i = 0; result != NULL && i < self->outputs; i++) {
        PyObject *item = PyLong_FromLongLong(outputs[i]);
        if (item == NULL || PyTuple_SetItem(result, i, item) != 0)
            Py_CLEAR(result);
    }
    return result;
}

static PyObject *size_program_run(PyObject *object, PyObject *values)
{
    const SizeProgram *self = (SizeProgram *)object;
    int64_t few[64], *numbers = few;
    Py_ssize_t count = self->symbols + self->outputs;
    if (count > (Py_ssize_t)(sizeof few / sizeof *few))
        numbers = PyMem_Malloc((size_t)count * sizeof *numbers);
    if (numbers == NULL)
        return PyErr_NoMemory();
    PyObject *result = compute_sizes(self, values, numbers);
    if (numbers != few)
        PyMem_Free(numbers);
    return result;
}

static PyMethodDef size_program_methods[] = {
    {"run", size_program_run, METH_O, "run(symbols) -> tuple of sizes"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot size_program_slots[] = {
    {Py_tp_new, (void *)size_program_new},
    {Py_tp_dealloc, (void *)size_program_dealloc},
    {Py_tp_methods, size_program_methods},
    {Py_tp_doc, "SizeProgram(code, symbols, outputs): a verified size program"},
    {0, NULL},
};

static PyType_Spec size_program_spec = {
    .name = "dovetail._native.SizeProgram",
    .basicsize = sizeof(SizeProgram),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = size_program_slots,
};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, name, type);
    if (kept != NULL && !failed)
        *kept = (PyTypeObject *)Py_NewRef(type);
    Py_DECREF(type);
    return failed;
}

/* Types of this module are kept in variables of the process, which belong to one interpreter.
 */
static int is_main_interpreter(void)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0)
        return 1;
    PyErr_SetString(PyExc_ImportError,
                    "dovetail's runtime serves the main interpreter of a process alone: use it "
                    "from threads or processes instead of subinterpreters");
    return 0;
}

static int module_exec(PyObject *module)
{
    if (!is_main_interpreter())
        return -1;
    return add_type(module, &size_program_spec, "SizeProgram", NULL) ||
                   add_type(module, &tensor_spec, "Tensor", &tensor_type) ||
                   add_type(module, &source_spec, "Source", &source_type) ||
                   add_type(module, &artifact_spec, "Artifact", NULL) ||
                   add_type(module, &plugin_spec, "Plugin", &plugin_type) ||
                   add_type(module, &device_buffer_spec, "DeviceBuffer", &device_buffer_type) ||
                   add_type(module, &memory_spec, "Memory", &memory_type) ||
                   add_type(module, &stream_spec, "Stream", &stream_type) ||
                   add_type(module, &event_spec, "Event", &event_type) ||
                   add_type(module, &plugin_program_spec, "PluginProgram", NULL) ||
                   add_type(module, &gpu_program_spec, "GpuProgram", NULL)
               ? -1
               : 0;
}

/* ---- functions ---- */

static PyObject *sha256(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer view;
    uint8_t digest[32];
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    dvt_sha256(view.buf, (size_t)view.len, digest);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return PyBytes_FromStringAndSize((const char *)digest, 32);
}

static PyObject *public_key(PyObject *module, PyObject *args)
{
    (void)module;
    const char *seed;
    Py_ssize_t size;
    uint8_t key[32];
    if (!PyArg_ParseTuple(args, "y#", &seed, &size))
        return NULL;
    if (size != 32)
        return raise_named("InvalidKey", "a private key has 32 bytes, not %zd", size);
    dvt_ed25519_public((const uint8_t *)seed, key);
    return PyBytes_FromStringAndSize((const char *)key, 32);
}

static PyObject *sign(PyObject *module, PyObject *args)
{
    (void)module;
    const char *seed, *message;
    Py_ssize_t size, length;
    uint8_t signature[64];
    if (!PyArg_ParseTuple(args, "y#y#", &seed, &size, &message, &length))
        return NULL;
    if (size != 32)
        return raise_named("InvalidKey", "a private key has 32 bytes, not %zd", size);
    dvt_ed25519_sign((const uint8_t *)seed, message, (size_t)length, signature);
    return PyBytes_FromStringAndSize((const char *)signature, 64);
}

static PyObject *verify(PyObject *module, PyObject *args)
{
    (void)module;
    const char *signature, *key, *message;
    Py_ssize_t sizes[3];
    if (!PyArg_ParseTuple(args, "y#y#y#", &signature, &sizes[0], &key, &sizes[1], &message,
                          &sizes[2]))
        return NULL;
    if (sizes[0] != 64 || sizes[1] != 32)
        return raise_named("InvalidKey", "a signature has 64 bytes and a key 32");
    return PyBool_FromLong(dvt_ed25519_verify((const uint8_t *)signature, (const uint8_t *)key,
                                              message, (size_t)sizes[2]));
}

static PyObject *kernels(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    const dvt_kernel *kernel;
    for (size_t i = 0; list != NULL && (kernel = dvt_builtin_kernel(i)) != NULL; i++) {
        PyObject *name = PyUnicode_FromFormat("%s@%u", kernel->name, kernel->version);
        if (name == NULL || PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *processor(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    return PyLong_FromUnsignedLong(dvt_processor_number());
}

static PyObject *version(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    return PyUnicode_FromString(dvt_version_text());
}

static PyObject *may_execute(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    return PyBool_FromLong(dvt_may_execute());
}

static PyObject *set_threads(PyObject *module, PyObject *count)
{
    (void)module;
    long number = PyLong_AsLong(count);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    dvt_set_threads(number > 256 ? 256 : number < 0 ? 0 : (int)number);
    return PyLong_FromLong(dvt_threads());
}

static PyObject *share_threads(PyObject *module, PyObject *share)
{
    (void)module;
    int wanted = PyObject_IsTrue(share);
    if (wanted < 0)
        return NULL;
    if (!wanted)
        dvt_own_threads();
    return PyBool_FromLong(wanted && dvt_adopt_openmp());
}

static PyObject *prefers_onednn(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(aten_prefers_onednn());
}

static PyMethodDef functions[] = {
    {"sha256", sha256, METH_O, "sha256(data) -> 32 bytes"},
    {"public_key", public_key, METH_VARARGS, "public_key(seed) -> 32 bytes (Ed25519)"},
    {"sign", sign, METH_VARARGS, "sign(seed, message) -> 64 bytes (Ed25519)"},
    {"verify", verify, METH_VARARGS, "verify(signature, key, message) -> bool (Ed25519)"},
    {"kernels", kernels, METH_NOARGS, "the built-in kernels, as name@version"},
    {"share_threads", share_threads, METH_O,
     "share_threads(True): run on the process's OpenMP threads, if it has any; False: on ours"},
    {"version", version, METH_NOARGS, "version() -> of the C runtime, such as '0.1.0'"},
    {"may_execute", may_execute, METH_NOARGS,
     "whether the system lets this process make memory executable"},
    {"processor", processor, METH_NOARGS,
     "processor() -> its number in code sections; 0: none"},
    {"plan_memory", plan_memory, METH_O,
     "plan_memory([(size, first, last)]) -> (offsets, peak, total, bound): where pieces of "
     "memory "
     "lie in one arena, each from its first step to its last"},
    {"watch_profiler", watch_profiler, METH_VARARGS,
     "watch_profiler(namespace, flag, make): while namespace[flag] is True, runs enter a "
     "context make(name) for each instruction"},
    {"set_threads", set_threads, METH_O, "set_threads(count) -> count now; 0: the default"},
    {"states", tensor_states, METH_VARARGS,
     "states(tensors, how) -> 88 bytes a tensor that change when it is written to: address, "
     "version, layout, contents; of how's byte for each, 0 reads eight words, 1 the whole of "
     "a small tensor, 2 the whole of any"},
    {"unchanged", (PyCFunction)(void (*)(void))states_unchanged, METH_FASTCALL,
     "unchanged(tensors, how, kept) -> whether states(tensors, how) is what it was"},
    {"listen", plugin_set_listener, METH_VARARGS,
     "listen(log, begin, end, progress): who hears of what plug-ins say"},
    {"read_dlpack", read_dlpack, METH_O,
     "read_dlpack(capsule) -> (device type, number, address, code, bits, lanes, shape, "
     "strides, offset, owner): the tensor is taken over and lives as long as its owner"},
    {"hold", hold_tensor, METH_O,
     "hold(tensor) -> Tensor of the same memory, which programs read faster as an argument"},
    {"gpu_products", gpu_products, METH_O,
     "gpu_products(on_gpu) -> names of the products that a GpuProgram can call"},
    {"prefers_onednn", prefers_onednn, METH_NOARGS,
     "whether PyTorch's large matrix products are faster by oneDNN on this processor"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,  .m_name = "dovetail._native", .m_doc = "The C runtime of dovetail.",
    .m_methods = functions, .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    dvt_processor_number(); /* reads its variable now, whatever becomes of the environment */
    return PyModuleDef_Init(&module);
}
