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
    PLUGIN_TIMEOUT,      /* what it was given never ends; it counts as lost */
} plugin_problem;

typedef struct {
    plugin_problem problem;
    char message[1400];
} plugin_error;

typedef struct {
    uint64_t uploads, downloads, upload_bytes, download_bytes, kernels, buffers;
    uint64_t peer_copies, peer_bytes;
    uint64_t recorded, replayed; /* graphs */
} plugin_counters;

/* The first are the runtime's own, the others streams of its callers. */
enum { PLUGIN_OWN_LANES = 4, PLUGIN_LANES = 12 };

/* Points in a turn that the host can wait for. */
enum { PLUGIN_MARKS = 4 };

/* What one run has to itself: a stream for kernels, one for copies to the device, and events
 * where the one waits for the other. */
typedef struct plugin_lane {
    struct dvt_plugin *plugin;
    dvp_stream *compute, *transfer;
    dvp_event *uploaded, *computed, *marks[PLUGIN_MARKS];
    bool made, taken;
    bool kept;     /* it is a caller's */
    bool imported; /* and `compute` his own stream, by its native handle: */
    void *native;
    uint64_t imported_at; /* the generation of the device that it is of; 0: not yet */
    _Atomic uint64_t given,
        finished; /* how often it got work; what is done and was waited for */
    _Atomic uint64_t bad_first, bad_last; /* turns whose work failed; 0: none */
    /* Turns of others that its work builds on (0: none), and what had failed there by then. */
    _Atomic uint64_t after[PLUGIN_LANES], seen[PLUGIN_LANES];
    void *held; /* a list of memory that a lost device may still write to */
} plugin_lane;

/* An event of a caller's; its handle goes when the device is closed. */
typedef struct plugin_event {
    dvp_event *handle; /* NULL: not made, or gone */
    struct plugin_event *next;
} plugin_event;

struct plugin_retired; /* memory, programs and graphs that nobody needs any more */

/* Work with the memory that it was recorded with, or will be if it comes again. */
enum { PLUGIN_GRAPHS = 4 };
typedef struct {
    dvp_graph *handle; /* NULL: seen once */
    uint64_t *key;
    size_t count;
    uint64_t generation, used; /* 0: nothing is here */
} plugin_graph;

/* The same work with several sets of addresses. Used by one run at a time. */
typedef struct {
    plugin_graph kept[PLUGIN_GRAPHS];
    uint64_t clock;
    uint64_t refused_at; /* the generation in which it could not be recorded; 0: none */
} plugin_graphs;

typedef struct dvt_plugin {
    dvp_plugin api; /* NULL where the plug-in's own table ends */
    dvp_info info;
    void *library;      /* as dlopen gave it */
    int32_t index;      /* of its device among the plug-in's */
    dvp_device *device; /* NULL: not open */
    _Atomic bool lost;  /* closed as soon as no run uses it any more */
    bool parallel;      /* runs hold no lock, and have a lane each */
    bool records;       /* work that comes again is recorded, where the plug-in can */
    uint32_t busy;      /* how many such runs there are */
    plugin_lane lanes[PLUGIN_LANES];
    _Atomic uint64_t
        generation;        /* changes whenever the device is opened; 0 before the first time */
    uint64_t buffer_count; /* that were ever made, for their numbers */
    uint64_t timeout;      /* nanoseconds that a stream is waited for; 0: for ever */
    int64_t used_at_open;
    plugin_counters counters;
    struct plugin_retired *retired;
    struct plugin_retired *spares; /* one for each thing that is not retired yet */
    plugin_event *events;
    dvt_lock lock;         /* long: without `parallel` one call at a time reaches the device */
    dvt_lock memory;       /* long: what the interface marks [memory] */
    dvt_lock retired_lock; /* brief */
} plugin;

/* Device memory. Its handle is dead once the plug-in's generation has moved on. */
typedef struct {
    void *memory;
    uint64_t bytes, generation;
    uint64_t number; /* no other buffer of the plug-in ever has it */
    bool constant;   /* its contents never change */
    bool addressed;  /* its handle is its address: the same handle is the same memory */
    int32_t lane;    /* that it was computed on, in the turn `given`; -1: it was sent */
    uint64_t given;
} plugin_buffer;

/* One kernel call with its tensors. Those in `slots` get their memory from a caller's buffer at
 * each run, the others lie in the program's arena. */
typedef struct {
    dvp_op op;
    dvp_tensor *inputs, *outputs;        /* what op points at, writable */
    int32_t *input_slots, *output_slots; /* -1: in the arena */
    uint8_t *input_flags;                /* what op points at, writable */
    struct plugin_prepared *prepared;    /* one an input: the plug-in's layout of a constant */
    uint32_t hidden; /* scales and zero points, behind the operation's own inputs */
    const char *kernel_name;
    uint32_t min_version, max_version;
    const dvp_kernel *kernel;
} plugin_step;

/* A constant operand as the plug-in laid it out. */
typedef struct plugin_prepared {
    uint64_t number; /* of the buffer that it was made from; 0: none */
    plugin_buffer buffer;
} plugin_prepared;

/* What tells memory from other memory whose handle it has: handles may come again, numbers
 * never. */
static inline uint64_t plugin_identity(const plugin_buffer *buffer)
{
    return buffer->addressed ? 0 : buffer->number;
}

/* How many tensors a step reads, scales and zero points of its operands among them. */
static inline uint32_t plugin_reads(const plugin_step *step)
{
    return step->op.input_count + step->hidden;
}

typedef struct {
    uint64_t offset, bytes;
    int32_t slot; /* -1: in the arena */
} plugin_range;

typedef struct {
    plugin_buffer arena;
    uint64_t arena_bytes;
    size_t step_count, upload_count, download_count, slot_count;
    size_t kept_at; /* the slots from here on are results, which stay on the device */
    plugin_step *steps;
    plugin_range *uploads, *downloads;
    const void *blob; /* NULL, or the compiled segment that is run for the one step */
    uint64_t blob_bytes;
    dvp_program *compiled;
    plugin_graphs graphs;
    uint64_t *key; /* what `graphs` tells runs apart by */
} plugin_program;

/* Each returns 0, or -1 with the error filled in. The library is never unloaded. */
int plugin_open(const char *path, int32_t index, plugin **out, plugin_error *error);
void plugin_drop(plugin *p);

/* ---- the device (plugin_device.c); the lock must be held, but for enter and leave ---- */

/* Opens the device if it is not open. */
int plugin_ready(plugin *p, plugin_error *error);
/* Closes the device. Sets *leaked to the bytes it still held that nobody freed. */
void plugin_close(plugin *p, int64_t *leaked);
/* Begins a run on a lane of its own, and ends it. In between the lock is held, unless the
 * plug-in is `parallel`. Where entering fails nothing is held. A run that reads buffers of a
 * lane that nobody has waited for yet gets that lane, so that it comes after them and hears of
 * their errors. */
int plugin_enter(plugin *p, plugin_buffer *const *reads, size_t count, plugin_lane **lane,
                 plugin_error *error);
void plugin_leave(plugin_lane *lane);
/* The same on a caller's lane, which comes after all that these buffers still wait for. NULL:
 * on any. */
int plugin_enter_on(plugin *p, plugin_lane *wanted, plugin_buffer *const *reads, size_t count,
                    plugin_lane **lane, plugin_error *error);
/* A lane for a caller; NULL: all are taken. */
plugin_lane *plugin_keep_lane(plugin *p);
void plugin_give_lane(plugin *p, plugin_lane *lane);
/* Makes a lane that was kept just now one whose kernels run on a native stream. */
int plugin_import_lane(plugin *p, plugin_lane *lane, void *native, plugin_error *error);
/* Events of callers: on the list from when they are made until they are freed. */
void plugin_keep_event(plugin *p, plugin_event *event);
void plugin_drop_event(plugin *p, plugin_event *event);
/* What runs on a lane from here on is not waited for by who leaves it. */
void plugin_computed_on(plugin_buffer *buffer, const plugin_lane *lane);
/* Keeps the device open beside runs of others, with no lane: false where it is another than
 * that of this generation. For what the interface marks [any], of parallel plug-ins. */
bool plugin_visit(plugin *p, uint64_t generation);
void plugin_depart(plugin *p);
/* For what runs of a parallel plug-in share. */
void plugin_hold(plugin *p);
void plugin_let(plugin *p);
int plugin_query_op(plugin *p, const dvp_op *op, dvp_answer *answer, plugin_error *error);
int plugin_get(plugin *p, const char *name, int64_t *value, plugin_error *error);
int plugin_set(plugin *p, const char *name, int64_t value, plugin_error *error);
int plugin_describe(plugin *p, dvp_device_info *info, plugin_error *error);
bool plugin_is_alive(const plugin *p, const plugin_buffer *buffer);
/* Gives memory back once no lane has work that may use it; any thread may, with no lock held.
 */
void plugin_free(plugin *p, plugin_buffer *buffer);
/* The same at once, where nothing uses it any more: of the host's own memory, which may be gone
 * later. The lock is held. */
void plugin_free_idle(plugin *p, plugin_buffer *buffer);
void plugin_free_compiled(plugin *p, dvp_program *compiled, uint64_t generation);
void plugin_free_graph(plugin *p, dvp_graph *graph, uint64_t generation);
/* Sees to it that one more buffer or program can be given back without memory to note it in;
 * where there came none of it, that is taken back. */
int plugin_reserve(plugin *p, plugin_error *error);
void plugin_unreserve(plugin *p);
/* Frees memory that a lane wrote to, of eight bytes at least; later where it still may. */
void plugin_release(plugin_lane *lane, void *memory);
/* Gives back what is due; all of it where nothing is at work. */
void plugin_sweep(plugin *p);

/* ---- memory and copies (plugin_copy.c), in a run ---- */

int plugin_alloc(plugin *p, uint64_t bytes, plugin_buffer *buffer, plugin_error *error);
/* Memory that the plug-in gave just now, as a buffer. */
plugin_buffer plugin_own(plugin *p, void *memory, uint64_t bytes);
/* Memory that the vendor's own library made: never freed here. */
plugin_buffer plugin_borrow(plugin *p, void *memory, uint64_t bytes);
/* Memory of another kind, and where the host uses it; what the host has already where
 * `*address` is not NULL. */
int plugin_alloc_kind(plugin *p, uint32_t kind, uint64_t bytes, plugin_buffer *buffer,
                      void **address, plugin_error *error);
int plugin_upload(plugin_lane *lane, const plugin_buffer *to, uint64_t offset, const void *from,
                  uint64_t bytes, plugin_error *error);
int plugin_download(plugin_lane *lane, void *to, const plugin_buffer *from, uint64_t offset,
                    uint64_t bytes, plugin_error *error);
/* Within the device, in order with its kernels. */
int plugin_move(plugin_lane *lane, const plugin_buffer *to, uint64_t to_offset,
                const plugin_buffer *from, uint64_t from_offset, uint64_t bytes,
                plugin_error *error);
/* From another device of the same library to all of a buffer. 1: it cannot be done directly. */
int plugin_copy_peer(plugin_lane *lane, const plugin_buffer *to, plugin *from,
                     const plugin_buffer *source, plugin_error *error);
/* Waits for all that a lane was given. */
int plugin_sync(plugin_lane *lane, plugin_error *error);
/* The same, at most so many nanoseconds: 1 where it has not ended by then. */
int plugin_wait(plugin_lane *lane, uint64_t nanoseconds, plugin_error *error);
/* Waits for an event, as long as that: DVP_TIMEOUT. The device is visited. */
dvp_status plugin_wait_event(plugin *p, dvp_event *event, uint64_t nanoseconds,
                             dvp_error *said);
/* Puts a mark of the turn behind what the kernels' stream was given: other than 0 where there
 * is none. Waits for it, as long as a stream may take: other than 0 where that says why. */
int plugin_mark(plugin_lane *lane, int32_t number);
int plugin_wait_mark(plugin_lane *lane, int32_t number);
/* Let all that a lane is given from now on wait for what another has been given. */
int plugin_follow(plugin_lane *lane, plugin_lane *other, plugin_error *error);
/* Notes that a lane builds on another's work, so that whoever waits hears of errors there. */
void plugin_builds_on(plugin_lane *lane, const plugin_lane *other, uint64_t turn);
bool plugin_builds_on_others(const plugin_lane *lane);
/* Let one stream wait for what the other has been given so far. */
int plugin_await_uploads(plugin_lane *lane, plugin_error *error);
int plugin_await_kernels(plugin_lane *lane, plugin_error *error);
/* Waits for the copies to the device alone, after which the host may free what it sent. */
int plugin_sync_uploads(plugin_lane *lane, plugin_error *error);

/* ---- kernels and programs (plugin_run.c), in a run ---- */

/* A kernel by name and versions (greatest 0: any), for an operator that messages name. */
int plugin_find_kernel(plugin *p, const char *name, uint32_t least, uint32_t greatest,
                       const char *op, const dvp_kernel **kernel, plugin_error *error);
int plugin_execute(plugin_lane *lane, const dvp_kernel *kernel, const char *name,
                   const dvp_op *op, plugin_error *error);
int plugin_load_blob(plugin *p, const void *blob, uint64_t bytes, dvp_program **compiled,
                     plugin_error *error);
/* Waits for the results, unless all of them stay on the device: then for the uploads alone. */
int plugin_run(plugin_lane *lane, plugin_program *program, plugin_buffer *const *slots,
               const void *const *uploads, void *const *downloads, plugin_error *error);
void plugin_free_program(plugin *p, plugin_program *program);

/* ---- recorded work (plugin_graph.c), in a run ---- */

/* Gives a lane's kernels work by calling `give`, which fails or gives all of it. Where the
 * plug-in can record and the same work with the same memory (`key`) comes a second time it
 * is recorded, and replayed from then on. What cannot be recorded is given as ever. */
int plugin_replay(plugin_lane *lane, plugin_graphs *graphs, const uint64_t *key, size_t count,
                  int (*give)(void *context, plugin_error *error), void *context,
                  plugin_error *error);
/* Once nothing runs it any more; any thread may, with no lock held. */
void plugin_free_graphs(plugin *p, plugin_graphs *graphs);

/* Whole segments. Each of the first two gives 1 where the plug-in compiles none. */
int plugin_compile(plugin *p, const dvp_segment *segment, const void **blob, uint64_t *bytes,
                   plugin_error *error);
int plugin_check_blob(plugin *p, const void *blob, uint64_t bytes, int32_t *state,
                      plugin_error *error);
void plugin_free_blob(plugin *p, const void *blob);

/* A constant operand in the plug-in's own layout, as bytes, which plugin_free_packed frees. 1:
 * it stays as it is. */
int plugin_pack(plugin *p, const dvp_op *op, uint32_t input, const void **packed,
                uint64_t *bytes, plugin_error *error);
void plugin_free_packed(plugin *p, const void *packed);
/* Whether bytes are such a layout. */
int plugin_accept(plugin *p, const dvp_op *op, uint32_t input, const void *packed,
                  uint64_t bytes, plugin_error *error);

/* Fills in an error from a plug-in's status; a device that is lost is closed. Returns -1. */
int plugin_fail(plugin *p, dvp_status status, const char *what, const dvp_error *said,
                plugin_error *error);
int plugin_problem_is(plugin_error *error, plugin_problem kind, const char *format, ...);

/* A structure that a plug-in fills in, with room behind it that must stay as it is. */
enum { PLUGIN_GUARD = 256 };
typedef struct {
    union {
        dvp_info info;
        dvp_answer answer;
        dvp_device_info device;
        unsigned char bytes[128];
    } value;
    unsigned char guard[PLUGIN_GUARD];
} plugin_guarded;
void plugin_guard(plugin_guarded *g, uint32_t size);
/* Whether a plug-in kept within the structure's size, before and behind its end. */
bool plugin_is_intact(const plugin_guarded *g, uint32_t size);

static inline void plugin_clear(dvp_error *said)
{
    said->struct_size = sizeof *said;
    said->message[0] = 0;
}

static inline void plugin_counted(uint64_t *counter, uint64_t by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

#endif
