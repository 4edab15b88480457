/* Statuses of the runtime as exceptions of dovetail.errors. */
#include "bindings.h"

#include <stdarg.h>
#include <stdio.h>

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
