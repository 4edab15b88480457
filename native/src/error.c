/* Errors: a status and a sentence. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

dvt_status dvt_fail(dvt_error *error, dvt_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        if (vsnprintf(error->message, sizeof error->message, format, arguments) < 0)
            error->message[0] = 0;
        va_end(arguments);
    }
    return status;
}
