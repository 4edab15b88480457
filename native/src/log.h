/* log.h: messages to the program's log. Not installed. */
#ifndef DVT_LOG_H
#define DVT_LOG_H

#include "dovetail.h"

#include <stdbool.h>

/* Whether anybody is told of messages of this level, where one takes work to put together. */
bool dvt_logs(int32_t level);
void dvt_log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
