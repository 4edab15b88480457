/* A host call made ready for libtorch: its arguments as a tree that needs no Python to read. */
#include "aten_internal.h"

#include <stdlib.h>

static const char *const KIND_NAMES[] = {"none", "tensor", "number", "word", "some", "list"};

static void free_arg(arg *a)
{
    for (uint32_t i = 0; a->items != NULL && i < a->count; i++)
        free_arg(&a->items[i]);
    free(a->items);
}

void aten_plan_free(aten_plan *plan)
{
    if (plan == NULL)
        return;
    free_arg(&plan->arguments);
    free(plan->op);
    free(plan->overload);
    free(plan);
}

static char *text_of(PyObject *object)
{
    PyObject *bytes = PyUnicode_AsUTF8String(object);
    char *text = bytes ? strdup(PyBytes_AsString(bytes)) : NULL;
    if (bytes != NULL && text == NULL)
        PyErr_NoMemory();
    Py_XDECREF(bytes);
    return text;
}

static int read_arg(PyObject *object, arg *to);

static int read_items(PyObject *items, arg *to)
{
    Py_ssize_t count = PyTuple_Size(items);
    if (count < 0)
        return -1;
    to->items = calloc((size_t)count + 1, sizeof *to->items);
    if (to->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    to->count = (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_arg(PyTuple_GetItem(items, i), &to->items[i]) != 0)
            return -1;
    return 0;
}

/* The value of an argument, after its kind is known. */
static int read_value(PyObject *value, arg *to)
{
    switch (to->kind) {
    case ARG_NONE:
        return 0;
    case ARG_SOME:
    case ARG_LIST:
        return read_items(value, to);
    default:
        if (PyUnicode_Check(value)) { /* a constant of libtorch's, by name */
            char *name = text_of(value);
            int32_t number = name ? aten_constant(name) : -1;
            free(name);
            to->word = (uint64_t)(int64_t)number;
            if (number < 0 && !PyErr_Occurred())
                to->kind = (arg_kind)-1;
            return PyErr_Occurred() ? -1 : 0;
        }
        to->word = PyLong_AsUnsignedLongLongMask(value);
        return PyErr_Occurred() ? -1 : 0;
    }
}

static int read_arg(PyObject *object, arg *to)
{
    PyObject *kind, *value;
    if (!PyArg_ParseTuple(object, "UO", &kind, &value))
        return -1;
    for (size_t i = 0; i < sizeof KIND_NAMES / sizeof *KIND_NAMES; i++)
        if (PyUnicode_CompareWithASCIIString(kind, KIND_NAMES[i]) == 0) {
            to->kind = (arg_kind)i;
            return read_value(value, to);
        }
    PyErr_Format(PyExc_ValueError, "a host argument of kind %R", kind);
    return -1;
}

/* Whether this libtorch has what an argument needs. */
static bool supported(const arg *a)
{
    bool fits = (int)a->kind >= 0;
    if (a->kind == ARG_SOME)
        fits = torch.cell_new != NULL || torch.operator_new != NULL;
    else if (a->kind == ARG_LIST)
        fits = torch.list_new != NULL && torch.list_push != NULL;
    for (uint32_t i = 0; fits && a->items != NULL && i < a->count; i++)
        fits = supported(&a->items[i]);
    return fits;
}

aten_plan *aten_plan_new(PyObject *description)
{
    PyObject *op, *overload, *own, *arguments;
    unsigned int results;
    int as_list;
    if (!PyArg_ParseTuple(description, "UUUO!Ip", &op, &overload, &own, &PyTuple_Type,
                          &arguments, &results, &as_list))
        return NULL;
    aten_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return (aten_plan *)PyErr_NoMemory();
    char *name = text_of(own);
    plan->op = text_of(op);
    plan->overload = text_of(overload);
    plan->results = results;
    plan->as_list = as_list;
    plan->arguments.kind = ARG_LIST;
    bool good = name && plan->op && plan->overload &&
                read_items(arguments, &plan->arguments) == 0 && supported(&plan->arguments) &&
                plan->arguments.count <= ATEN_STACK && results <= ATEN_STACK &&
                !(as_list && (torch.list_get == NULL || torch.list_drop == NULL));
    if (good && *name != 0)
        good = aten_find_direct(plan, name);
    free(name);
    if (good)
        return plan;
    aten_plan_free(plan);
    return NULL;
}
