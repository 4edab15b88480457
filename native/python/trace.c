/* Instructions as ranges of torch.profiler, while one runs: its flag is a variable of a module,
 * which is looked at once a run. */
#include "bindings.h"
#include "trace.h"

static PyObject *flags;  /* the namespace that the flag is in; NULL: nobody told us */
static PyObject *flag;   /* the flag's name */
static PyObject *ranges; /* makes a range of a name: a context manager */

PyObject *watch_profiler(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *namespace, *name, *make;
    if (!PyArg_ParseTuple(args, "OUO:watch_profiler", &namespace, &name, &make))
        return NULL;
    if (namespace != Py_None && !PyDict_Check(namespace)) {
        PyErr_SetString(PyExc_TypeError, "a namespace is a dict, or None");
        return NULL;
    }
    PyObject *before[] = {flags, flag, ranges};
    flags = namespace == Py_None ? NULL : Py_NewRef(namespace);
    flag = Py_NewRef(name);
    ranges = Py_NewRef(make);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        Py_XDECREF(before[i]);
    Py_RETURN_NONE;
}

bool profiler_runs(void)
{
    return flags != NULL && PyDict_GetItem(flags, flag) == Py_True;
}

static PyObject *begin(const tracing *t, uint32_t instruction)
{
    size_t length;
    const char *name = dvt_instruction_name(t->artifact, instruction, &length);
    PyObject *text = PyUnicode_DecodeUTF8(name, (Py_ssize_t)length, "replace");
    PyObject *range = text ? PyObject_CallFunctionObjArgs(ranges, text, NULL) : NULL;
    PyObject *entered = range ? PyObject_CallMethod(range, "__enter__", NULL) : NULL;
    if (entered == NULL)
        Py_CLEAR(range);
    Py_XDECREF(entered);
    Py_XDECREF(text);
    return range;
}

/* With an exception set, as by a signal's handler, the range ends where it is freed. A profiler
 * that fails does not fail the run. */
static void leave(tracing *t)
{
    if (t->range != NULL && !PyErr_Occurred()) {
        PyObject *left =
            PyObject_CallMethod(t->range, "__exit__", "OOO", Py_None, Py_None, Py_None);
        Py_XDECREF(left);
        PyErr_Clear();
    }
    Py_CLEAR(t->range);
}

void trace_instruction(void *context, uint32_t instruction, int begins)
{
    tracing *t = context;
    PyEval_RestoreThread(*t->released);
    if (!begins) {
        leave(t);
    } else if (!PyErr_Occurred()) {
        t->range = begin(t, instruction);
        PyErr_Clear();
    }
    *t->released = PyEval_SaveThread();
}

void trace_end(tracing *t)
{
    leave(t);
}
