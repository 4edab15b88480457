/* plugin_host.h: what the host offers to plug-ins. Not installed. */
#ifndef DVT_PLUGIN_HOST_H
#define DVT_PLUGIN_HOST_H

#include "dovetail_plugin.h"

extern const dvp_host PLUGIN_HOST;

/* Who hears of what plug-ins say, as long as the process lives. Each may be NULL. */
typedef struct {
    void (*log)(int32_t level, const char *message);
    uint64_t (*span_begin)(const char *name);
    void (*span_end)(uint64_t span);
    void (*progress)(const char *what, double done);
} plugin_listener;
void plugin_listen(const plugin_listener *listener);

#endif
