/* plugin.h: the host's side of dovetail_plugin.h. No Python in here. */
#ifndef DVT_PLUGIN_H
#define DVT_PLUGIN_H

#include "dovetail_plugin.h"
#include "lock.h"

/* What went wrong, as the user is told: one class of dovetail.errors each. */
typedef enum {
    PLUGIN_OK = 0,
    PLUGIN_NOT_FOUND,    /* no such file */
    PLUGIN_INVALID,      /* no library, no symbol, or it breaks the interface's rules */
    PLUGIN_INCOMPATIBLE, /* another version of the interface */
    PLUGIN_FAILED,       /* a function of the plug-in failed */
    PLUGIN_LOST,         /* the device is gone; the next use opens it anew */
    PLUGIN_MEMORY,       /* no memory, on the device or here */
} plugin_problem;

typedef struct {
    plugin_problem problem;
    char message[1400];
} plugin_error;

typedef struct {
    uint64_t uploads, downloads, upload_bytes, download_bytes, kernels, buffers;
} plugin_counters;

typedef struct dvt_plugin {
    dvp_plugin api; /* NULL where the plug-in's own table ends */
    dvp_info info;
    void *library;      /* as dlopen gave it */
    dvp_device *device; /* NULL: not open, or lost */
    dvp_stream *compute, *transfer;
    dvp_event *uploaded, *computed; /* where the one stream waits for the other */
    uint64_t generation; /* changes whenever the device is opened; 0 before the first time */
    int64_t used_at_open;
    plugin_counters counters;
    dvt_lock lock; /* long: one call at a time reaches the device */
} plugin;

/* Device memory. Its handle is dead once the plug-in's generation has moved on. */
typedef struct {
    void *memory;
    uint64_t bytes, generation;
} plugin_buffer;

/* One kernel call with its tensors. Those in `slots` get their memory from a caller's buffer at
 * each run, the others lie in the program's arena. */
typedef struct {
    dvp_op op;
    dvp_tensor *inputs, *outputs; /* what op points at, writable */
    int32_t *input_slots;         /* -1: in the arena */
    const char *kernel_name;
    uint32_t min_version, max_version;
    const dvp_kernel *kernel;
} plugin_step;

typedef struct {
    uint64_t offset, bytes;
} plugin_range;

typedef struct {
    plugin_buffer arena;
    uint64_t arena_bytes;
    size_t step_count, upload_count, download_count, slot_count;
    plugin_step *steps;
    plugin_range *uploads, *downloads;
    const void *blob; /* NULL, or the compiled segment that is run for the one step */
    uint64_t blob_bytes;
    dvp_program *compiled;
} plugin_program;

/* Each returns 0, or -1 with the error filled in. The library is never unloaded. */
int plugin_open(const char *path, plugin **out, plugin_error *error);
/* Opens the device if it is not open. The lock must be held here and below. */
int plugin_ready(plugin *p, plugin_error *error);
/* Closes the device. Sets *leaked to the bytes it still held that nobody freed. */
void plugin_close(plugin *p, int64_t *leaked);
int plugin_query_op(plugin *p, const dvp_op *op, dvp_answer *answer, plugin_error *error);
int plugin_get(plugin *p, const char *name, int64_t *value, plugin_error *error);
int plugin_set(plugin *p, const char *name, int64_t value, plugin_error *error);
int plugin_alloc(plugin *p, uint64_t bytes, plugin_buffer *buffer, plugin_error *error);
void plugin_free(plugin *p, plugin_buffer *buffer);
int plugin_upload(plugin *p, const plugin_buffer *to, uint64_t offset, const void *from,
                  uint64_t bytes, plugin_error *error);
int plugin_download(plugin *p, void *to, const plugin_buffer *from, uint64_t offset,
                    uint64_t bytes, plugin_error *error);
int plugin_sync(plugin *p, plugin_error *error);
/* Let one stream wait for what the other has been given so far. */
int plugin_await_uploads(plugin *p, plugin_error *error);
int plugin_await_kernels(plugin *p, plugin_error *error);
/* A kernel by name and versions (greatest 0: any), for an operator that messages name. */
int plugin_find_kernel(plugin *p, const char *name, uint32_t least, uint32_t greatest,
                       const char *op, const dvp_kernel **kernel, plugin_error *error);
int plugin_execute(plugin *p, const dvp_kernel *kernel, const char *name, const dvp_op *op,
                   plugin_error *error);
int plugin_load_blob(plugin *p, const void *blob, uint64_t bytes, dvp_program **compiled,
                     plugin_error *error);
int plugin_run(plugin *p, plugin_program *program, const plugin_buffer *const *slots,
               const void *const *uploads, void *const *downloads, plugin_error *error);

/* Whole segments. Each of the first two gives 1 where the plug-in compiles none. */
int plugin_compile(plugin *p, const dvp_segment *segment, const void **blob, uint64_t *bytes,
                   plugin_error *error);
int plugin_check_blob(plugin *p, const void *blob, uint64_t bytes, int32_t *state,
                      plugin_error *error);
void plugin_free_blob(plugin *p, const void *blob);
void plugin_free_program(plugin *p, plugin_program *program);

/* Fills in an error from a plug-in's status; closes a device that is lost. Returns -1. */
int plugin_fail(plugin *p, dvp_status status, const char *what, const dvp_error *said,
                plugin_error *error);

#endif
