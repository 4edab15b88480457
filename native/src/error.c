/* Errors: a status and a sentence. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

static bool is_shown(const dvt_names *names, span name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (names->shown[i].size == name.size &&
            memcmp(names->shown[i].data, name.data, name.size) == 0)
            return true;
    return false;
}

static void append(dvt_names *names, const void *text, size_t size)
{
    memcpy(names->text + names->length, text, size);
    names->length += size;
    names->text[names->length] = 0;
}

void dvt_names_add(dvt_names *names, span name)
{
    static const char separator[] = ", ",
                      rest[] = ", …"; /* `rest` always has room, and the 0 */
    size_t between = names->count > 0 ? sizeof separator - 1 : 0;
    size_t room = sizeof names->text - names->length - sizeof rest;
    if (names->cut || name.size == 0 || is_shown(names, name))
        return;
    if (names->count == sizeof names->shown / sizeof *names->shown || room < between ||
        name.size > room - between) {
        append(names, names->count > 0 ? rest : rest + sizeof separator - 1,
               names->count > 0 ? sizeof rest - 1 : sizeof rest - sizeof separator);
        names->cut = true;
        return;
    }
    append(names, separator, between);
    append(names, name.data, name.size);
    names->shown[names->count++] = name;
}

dvt_status dvt_fill(void *to, const void *from, uint32_t size)
{
    uint32_t given;
    memcpy(&given, to, sizeof given);
    if (given < sizeof given)
        return DVT_ERROR_ARGUMENT;
    uint32_t filled = given < size ? given : size;
    memcpy(to, from, filled);
    memcpy(to, &filled, sizeof filled);
    return DVT_OK;
}
