/* _native.listen: Python hears of what plug-ins say. Plug-ins say it in threads that do not
 * hold the interpreter lock, and never while a function of theirs is called under it. */
#include "plugin_bindings.h"

#include "plugin_host.h"

static PyObject *heard; /* (log, begin, end, progress) */

/* Calls one of them; its result, or NULL. What it raises is shown and forgotten. */
static PyObject *tell(Py_ssize_t index, PyObject *arguments)
{
    PyObject *result = NULL;
    if (arguments != NULL && heard != NULL)
        result = PyObject_CallObject(PyTuple_GetItem(heard, index), arguments);
    Py_XDECREF(arguments);
    if (result == NULL)
        PyErr_WriteUnraisable(heard);
    return result;
}

static void on_log(int32_t level, const char *message)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(tell(0, Py_BuildValue("(is)", (int)level, message)));
    PyGILState_Release(state);
}

static uint64_t on_begin(const char *name)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = tell(1, Py_BuildValue("(s)", name));
    uint64_t number = result == NULL ? 0 : PyLong_AsUnsignedLongLong(result);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        number = 0;
    }
    Py_XDECREF(result);
    PyGILState_Release(state);
    return number;
}

static void on_end(uint64_t number)
{
    if (number == 0)
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(tell(2, Py_BuildValue("(K)", (unsigned long long)number)));
    PyGILState_Release(state);
}

static void on_progress(const char *what, double done)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(tell(3, Py_BuildValue("(sd)", what, done)));
    PyGILState_Release(state);
}

PyObject *plugin_set_listener(PyObject *module, PyObject *args)
{
    static const plugin_listener listener = {on_log, on_begin, on_end, on_progress};
    PyObject *log, *begin, *end, *progress;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &log, &begin, &end, &progress))
        return NULL;
    PyObject *made = PyTuple_Pack(4, log, begin, end, progress);
    if (made == NULL)
        return NULL;
    Py_XDECREF(heard);
    heard = made;
    plugin_listen(&listener);
    return Py_NewRef(Py_None);
}
