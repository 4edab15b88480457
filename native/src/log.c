/* Messages to the program's log, and which version this is. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define TEXT(number)    TEXT_OF(number)
#define TEXT_OF(number) #number
#define LONGEST_MESSAGE 1000

static _Atomic(dvt_log_function) log_function;
static _Atomic(void *) log_context;
static atomic_int log_least = DVT_LOG_NONE;

void dvt_set_log(dvt_log_function function, void *context, int32_t least)
{
    atomic_store(&log_least, DVT_LOG_NONE); /* nobody is called while these two change */
    atomic_store(&log_context, context);
    atomic_store(&log_function, function);
    atomic_store(&log_least, function != NULL ? least : DVT_LOG_NONE);
}

void dvt_log(int32_t level, const char *format, ...)
{
    char text[LONGEST_MESSAGE];
    if (!dvt_logs(level))
        return;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dvt_log_function function = atomic_load(&log_function);
    if (written >= 0 && function != NULL)
        function(atomic_load(&log_context), level, text);
}

bool dvt_logs(int32_t level)
{
    return level >= atomic_load_explicit(&log_least, memory_order_relaxed);
}

uint32_t dvt_version(void)
{
    return DVT_VERSION;
}

const char *dvt_version_text(void)
{
    return TEXT(DVT_VERSION_MAJOR) "." TEXT(DVT_VERSION_MINOR) "." TEXT(DVT_VERSION_PATCH);
}
