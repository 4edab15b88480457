/* dovetail.h: the C interface of the dovetail runtime.
 *
 * C11, libc and threads only. Every function that can fail returns a dvt_status and, where it
 * takes a dvt_error, says in words what was wrong; nothing aborts. Structures that may grow
 * start with `struct_size`, which the caller sets to sizeof, also of those that are filled in
 * for it: no more than that is read or written.
 *
 *     dvt_artifact *model;
 *     dvt_error error;
 *     if (dvt_open("model.dvt", NULL, &model, &error) != DVT_OK)
 *         puts(error.message);
 *     dvt_managed *result;
 *     dvt_run(model, NULL, &input, 1, &result, 1, &error);
 *     ... result->tensor.data ...
 *     result->deleter(result);
 *     dvt_close(model);
 *
 * Threads. A function is of one of three kinds (a test holds this list to the header):
 *
 * any: any number of threads may call it at one time, with the same objects too. Runs of one
 * state wait for each other, and reading, writing or resetting it waits for a run that uses it;
 * runs of several states do not wait.
 *
 *     dvt_version dvt_version_text dvt_status_text dvt_find_kernel dvt_builtin_kernel
 *     dvt_register_kernel dvt_threads dvt_processor_number dvt_may_execute
 *     dvt_load_plugin dvt_plugin_name dvt_source_open dvt_source_memory dvt_open_source
 *     dvt_open dvt_open_memory dvt_writes_inputs dvt_input_count dvt_output_count
 *     dvt_input_info dvt_output_info dvt_find_input dvt_find_output dvt_output_shape
 *     dvt_symbol_count dvt_symbol_at dvt_section dvt_host_call_count dvt_host_call_at
 *     dvt_device_at dvt_blob_at dvt_signature_state dvt_content_digest dvt_trusted
 *     dvt_code_state dvt_code_refusal dvt_memory_used dvt_cleared_bytes dvt_padding_bytes
 *     dvt_least_time dvt_last_time dvt_instruction_count dvt_instruction_name dvt_run
 *     dvt_run_named dvt_run_batch dvt_state_count dvt_state_at dvt_state_new
 *     dvt_own_state dvt_state_reset dvt_state_read dvt_state_write dvt_plugin_attribute
 *     dvt_memory_kinds dvt_buffer_new dvt_buffer_import dvt_buffer_host
 *     dvt_buffer_bytes dvt_buffer_handle dvt_buffer_borrow dvt_buffer_write dvt_buffer_read
 *     dvt_input_plugin dvt_output_plugin dvt_stream_new dvt_stream_import dvt_stream_native
 *     dvt_stream_wait dvt_stream_follow dvt_event_new dvt_event_wait dvt_size_verify
 *     dvt_size_run dvt_sha256 dvt_ed25519_verify dvt_ed25519_public dvt_ed25519_sign
 *
 * once: by one thread, when no other uses the object and none will afterwards.
 *
 *     dvt_close dvt_close_plugin dvt_source_close dvt_state_free dvt_buffer_free
 *     dvt_stream_free dvt_event_free
 *
 * first: before other threads use the object, or the library where there is no object.
 *
 *     dvt_set_listener dvt_event_record dvt_use_code dvt_measure dvt_set_threads
 * dvt_adopt_openmp dvt_own_threads dvt_set_log
 *
 * Callbacks (dvt_host, dvt_run_options.poll, dvt_allocator, a log function, a deleter) are
 * called by the thread that called the library, but for allocators and log functions, which any
 * thread of the library may call; they must not call back with the same artifact or state. A
 * signal handler may set the flag that dvt_run_options.cancel points to and nothing else. After
 * fork() a child may go on with what its parent had open; runs of other threads of the parent
 * are not in it.
 */
#ifndef DOVETAIL_H
#define DOVETAIL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Set by those who build the library: what makes a function visible outside of it. */
#ifndef DVT_API
#define DVT_API
#endif

#define DVT_VERSION_MAJOR 0
#define DVT_VERSION_MINOR 1
#define DVT_VERSION_PATCH 0
#define DVT_VERSION_NUMBER(major, minor, patch)                                                \
    ((uint32_t)(major) << 16 | (uint32_t)(minor) << 8 | (uint32_t)(patch))
/* The version of this header. */
#define DVT_VERSION DVT_VERSION_NUMBER(DVT_VERSION_MAJOR, DVT_VERSION_MINOR, DVT_VERSION_PATCH)

/* The version of the library that runs: DVT_VERSION_NUMBER of it, and as text, "0.1.0". Within
 * one soname (libdovetail.so.0) a newer library serves programs built with an older header. */
DVT_API uint32_t dvt_version(void);
DVT_API const char *dvt_version_text(void);

/* The file format this build writes and reads: the same major, this minor or an older one. */
#define DVT_FORMAT_MAJOR 1
#define DVT_FORMAT_MINOR 6

typedef int32_t dvt_status;
enum {
    DVT_OK = 0,
    DVT_ERROR_MALFORMED = 1,      /* the program is not valid: it would read or
                                     write out of range, or leave a value behind */
    DVT_ERROR_OVERFLOW = 2,       /* a result does not fit 64 bits */
    DVT_ERROR_DIVIDE_BY_ZERO = 3, /* a size or an integer was divided by zero */
    DVT_ERROR_IO = 4,             /* a file cannot be opened, read or mapped */
    DVT_ERROR_UNSUPPORTED = 5,    /* sound, but not for this version, machine or process */
    DVT_ERROR_GUARD = 6,          /* the inputs are not what the program was made for */
    DVT_ERROR_MEMORY = 7,         /* out of memory */
    DVT_ERROR_UNTRUSTED = 8,      /* the file needs what only a trusted one may do */
    DVT_ERROR_INDEX = 9,          /* an index held in a tensor is out of range */
    DVT_ERROR_HOST = 10,          /* a host operation failed */
    DVT_ERROR_ARGUMENT = 11,      /* a call of this interface with wrong arguments */
    DVT_ERROR_BOUNDS = 12,        /* the same as INDEX, where PyTorch raises RuntimeError */
    DVT_ERROR_DIVISOR = 13,       /* an integer held in a tensor was divided by zero */
    DVT_ERROR_CANCELLED = 14,     /* the caller stopped the run */
    DVT_ERROR_LIMIT = 15,         /* more work or memory than the file may take */
    DVT_ERROR_CHANGED = 16,       /* the file was changed or cut short after it was opened */
};
enum {                                     /* of plug-ins and their devices */
       DVT_ERROR_PLUGIN_MISSING = 20,      /* there is no such library, or it was not given */
       DVT_ERROR_PLUGIN_INVALID = 21,      /* no plug-in, or it breaks the interface's rules */
       DVT_ERROR_PLUGIN_INCOMPATIBLE = 22, /* too old, too new, or without a kernel */
       DVT_ERROR_PLUGIN_FAILED = 23,       /* a function or kernel of a plug-in failed */
       DVT_ERROR_DEVICE_LOST = 24,         /* a device is gone; the next run opens it again */
       DVT_ERROR_NOT_YET = 25,             /* it has not ended within the time that was given */
};

/* What a status means, in words. Never NULL. */
DVT_API const char *dvt_status_text(dvt_status status);

typedef struct {
    dvt_status status;
    char message[500];
} dvt_error;

/* ---- Messages ---- */

/* What the library does and why it runs slower than it could, for a program's log. Failures are
 * not logged: they are returned. */
enum { DVT_LOG_DEBUG = 10, DVT_LOG_INFO = 20, DVT_LOG_WARNING = 30, DVT_LOG_NONE = 100 };
typedef void (*dvt_log_function)(void *context, int32_t level, const char *message);
/* Have messages of at least this level go to a function; NULL: nobody is told, as at first. */
DVT_API void dvt_set_log(dvt_log_function function, void *context, int32_t least);

/* What plug-ins tell while they work: spans for a profile (what a thread does between a begin
 * and its end, the last begun ending first; `begin` gives a number, 0 for a span that nobody
 * wants to hear the end of) and how far a long call is, 0 to 1. Their messages go to the log.
 * Any thread may call these; each may be NULL. */
typedef struct {
    uint32_t struct_size;
    uint32_t reserved;
    void *context;
    uint64_t (*span_begin)(void *context, const char *name);
    void (*span_end)(void *context, uint64_t span);
    void (*progress)(void *context, const char *what, double done);
} dvt_listener;
/* Have these called; NULL: nobody is told, as at first. The structure is copied. */
DVT_API dvt_status dvt_set_listener(const dvt_listener *listener, dvt_error *error);

/* ---- Tensors: laid out as DLPack 1.x has them ---- */

enum {
    DVT_INT = 0,
    DVT_UINT = 1,
    DVT_FLOAT = 2,
    DVT_BFLOAT = 4,
    DVT_COMPLEX = 5,
    DVT_BOOL = 6
};
enum {
    DVT_CPU = 1,
    DVT_EXTENSION = 12,
    DVT_DEVICE_BUFFER = 4097 /* not DLPack's: `data` is a dvt_buffer, never another's pointer */
};

typedef struct {
    int32_t type; /* DVT_CPU, or another of DLPack's device types */
    int32_t id;
} dvt_device;

typedef struct {
    uint8_t code; /* DVT_INT … */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} dvt_dtype;

typedef struct {
    void *data;
    dvt_device device;
    int32_t ndim;
    dvt_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major */
    uint64_t byte_offset;
} dvt_tensor;

/* A tensor with an owner: call deleter(self) once, when done with it. */
typedef struct dvt_managed {
    struct {
        uint32_t major, minor; /* of DLPack: 1.x */
    } version;
    void *manager_ctx;
    void (*deleter)(struct dvt_managed *self);
    uint64_t flags; /* bit 0: read only */
    dvt_tensor tensor;
} dvt_managed;

/* ---- Kernels ---- */

typedef union {
    int64_t i;
    double f;
} dvt_number;

/* Runs body(context, begin, end) over [0, count), split among threads in pieces of at least
 * `grain`; returns when all of it is done. */
typedef void (*dvt_body)(void *context, int64_t begin, int64_t end);

typedef struct dvt_call {
    uint32_t struct_size;
    uint32_t output_count, input_count, attribute_count;
    const dvt_tensor *const *outputs;
    const dvt_tensor *const *inputs;
    const dvt_number *attributes;
    void (*parallel)(int64_t count, int64_t grain, dvt_body body, void *context);
    const struct dvt_kernel *kernel; /* the entry that is called */
} dvt_call;

/* One entry of the kernel table, which built-in, plug-in and generated kernels share. `check`
 * sees shapes but no data; a call that it accepts must be safe to run, whatever the data, and
 * write every element of its outputs. */
typedef struct dvt_kernel {
    uint32_t struct_size;
    uint32_t version;
    const char *name;
    dvt_status (*check)(const dvt_call *call, dvt_error *error);
    dvt_status (*run)(const dvt_call *call, dvt_error *error);
} dvt_kernel;

/* Add a kernel (the structure must outlive every artifact); an entry of the same name and
 * version is DVT_ERROR_ARGUMENT. */
DVT_API dvt_status dvt_register_kernel(const dvt_kernel *kernel, dvt_error *error);

/* The kernel of this name and at least this version, or NULL. */
DVT_API const dvt_kernel *dvt_find_kernel(const char *name, size_t length, uint32_t version);

/* The `index`-th built-in kernel, NULL past the last. */
DVT_API const dvt_kernel *dvt_builtin_kernel(size_t index);

/* How many threads kernels may use; 0 restores the default: DOVETAIL_NUM_THREADS, else one for
 * each core. */
DVT_API void dvt_set_threads(int count);
DVT_API int dvt_threads(void);

/* Run kernels on the threads of the OpenMP library (GNU's) that this process has loaded
 * already, so that a framework and we share one pool. 1: found; 0: there is none, and our own
 * threads serve. */
DVT_API int dvt_adopt_openmp(void);
/* Run kernels on threads of our own again. */
DVT_API void dvt_own_threads(void);

/* ---- Artifacts ---- */

typedef struct dvt_artifact dvt_artifact;

/* A library that implements dovetail_plugin.h, and its device. It must outlive the artifacts
 * that are opened with it; any number of them may share it. */
typedef struct dvt_plugin dvt_plugin;
DVT_API dvt_status dvt_load_plugin(const char *path, dvt_plugin **plugin, dvt_error *error);
/* The name by which an artifact asks for it. */
DVT_API const char *dvt_plugin_name(const dvt_plugin *plugin);
/* Closes the device and lets go of the library; returns the bytes of device memory that were
 * left after everything was given back (0: none, or the plug-in does not say). */
DVT_API int64_t dvt_close_plugin(dvt_plugin *plugin);

/* ---- Memory, streams and events of a device ----
 *
 * A run with a stream (dvt_run_options.stream) returns when the device has been given its work:
 * what runs on a stream happens in its order, and work of several streams at one time. Memory
 * of the caller's that it reads or writes, inputs, results and outputs, is the device's until
 * the stream, or the event that the run recorded, has been waited for; an error of the work is
 * what waiting returns. A run that has the host finish something waits by itself, in front of
 * that.
 *
 * A tensor on the device has a dvt_buffer in `data`, device {DVT_DEVICE_BUFFER, 0}, and starts
 * `byte_offset` in it. Inputs that a program only copies to that device, and results that it
 * only copies from there, may be such tensors, laid out as the program has them: they are never
 * on the host. Kernels use them where they lie (in memory of the device's or unified, at a
 * multiple of 64 bytes, inputs that nothing writes to); else they are copied within the device.
 * The library lets a run wait for what other streams compute in its inputs and in
 * its state; all else that two streams do with one buffer the caller orders by events.
 *
 * All of them belong to one plug-in and are freed before it is closed; buffers and streams once
 * nothing uses them. Streams of a device that was lost serve again when it is open again; its
 * buffers are lost. */
typedef struct dvt_buffer dvt_buffer;
typedef struct dvt_stream dvt_stream;
typedef struct dvt_event dvt_event;

/* A number that the plug-in tells of its device, by name: "memory.used", or any of its own. */
DVT_API dvt_status dvt_plugin_attribute(dvt_plugin *plugin, const char *name, int64_t *value,
                                        dvt_error *error);

/* Kinds of memory: the device's own; the host's, which copies reach with no detour; such as
 * kernels and the host both use where it lies; and memory of the caller's. */
enum {
    DVT_MEMORY_DEVICE = 1,
    DVT_MEMORY_PINNED = 2,
    DVT_MEMORY_UNIFIED = 4,
    DVT_MEMORY_IMPORTED = 8
};
/* Those that the device has, each a bit. */
DVT_API uint32_t dvt_memory_kinds(dvt_plugin *plugin);
/* Of one of these kinds, but imported. DVT_ERROR_UNSUPPORTED: the device has it not. */
DVT_API dvt_status dvt_buffer_new(dvt_plugin *plugin, uint32_t kind, uint64_t bytes,
                                  dvt_buffer **buffer, dvt_error *error);
/* Memory of the caller's as the device's, with no copy of it; it stays there until the buffer
 * is freed. DVT_ERROR_UNSUPPORTED: the device cannot use this memory. */
DVT_API dvt_status dvt_buffer_import(dvt_plugin *plugin, void *memory, uint64_t bytes,
                                     dvt_buffer **buffer, dvt_error *error);
/* Waits for streams that may still use imported memory. */
DVT_API void dvt_buffer_free(dvt_buffer *buffer);
DVT_API uint64_t dvt_buffer_bytes(const dvt_buffer *buffer);
/* What the plug-in calls the buffer's memory, for kernels of the caller's own; NULL: it is
 * lost. Work that uses it and that the library did not give to the device is the caller's to
 * order, and to wait for before the buffer is freed. */
DVT_API void *dvt_buffer_handle(const dvt_buffer *buffer);
/* Memory that the vendor's own library made, by what the plug-in calls it. It is the caller's
 * and stays until the buffer is freed and nothing that was given to the device uses it. */
DVT_API dvt_status dvt_buffer_borrow(dvt_plugin *plugin, void *handle, uint64_t bytes,
                                     dvt_buffer **buffer, dvt_error *error);
/* Where the host uses the buffer; NULL: nowhere, or the buffer is lost. What is there is copied
 * to and from the device faster than other memory. */
DVT_API void *dvt_buffer_host(const dvt_buffer *buffer);
/* Copies to and from the host, in the order of a stream; NULL: done when this returns. */
DVT_API dvt_status dvt_buffer_write(dvt_buffer *buffer, dvt_stream *stream, uint64_t offset,
                                    const void *from, uint64_t bytes, dvt_error *error);
DVT_API dvt_status dvt_buffer_read(dvt_buffer *buffer, dvt_stream *stream, uint64_t offset,
                                   void *to, uint64_t bytes, dvt_error *error);

/* The plug-in on whose device an input or a result may lie; NULL: it is the host's. */
DVT_API dvt_plugin *dvt_input_plugin(const dvt_artifact *artifact, size_t index);
DVT_API dvt_plugin *dvt_output_plugin(const dvt_artifact *artifact, size_t index);

/* A device has 8 streams at most; calls of one stream wait for each other. */
DVT_API dvt_status dvt_stream_new(dvt_plugin *plugin, dvt_stream **stream, dvt_error *error);
/* One that the vendor's own library made, by what that calls it (as a cudaStream_t): runs come
 * after what the caller gave it and before what he gives it next, and nobody waits. It stays
 * his, until after dvt_stream_free; where its device is lost it is lost, too.
 * DVT_ERROR_UNSUPPORTED: the plug-in takes none. */
DVT_API dvt_status dvt_stream_import(dvt_plugin *plugin, void *native, dvt_stream **stream,
                                     dvt_error *error);
/* What the vendor's own library calls a stream, to give it work of the caller's own.
 * DVT_ERROR_UNSUPPORTED: the plug-in does not tell. */
DVT_API dvt_status dvt_stream_native(dvt_stream *stream, void **native, dvt_error *error);
/* Waits for all that the stream was given, at most so many nanoseconds: DVT_ERROR_NOT_YET. */
DVT_API dvt_status dvt_stream_wait(dvt_stream *stream, uint64_t nanoseconds, dvt_error *error);
/* Has what the stream is given from now on wait for an event; the caller does not wait. */
DVT_API dvt_status dvt_stream_follow(dvt_stream *stream, const dvt_event *event,
                                     dvt_error *error);
/* Waits for the stream first. */
DVT_API void dvt_stream_free(dvt_stream *stream);

/* An event is a point in a stream: recorded by dvt_event_record or by a run
 * (dvt_run_options.done), by one thread at a time and not while others use it. One that was
 * never recorded has happened. */
DVT_API dvt_status dvt_event_new(dvt_plugin *plugin, dvt_event **event, dvt_error *error);
DVT_API dvt_status dvt_event_record(dvt_event *event, dvt_stream *stream, dvt_error *error);
/* Waits until it has happened, at most so many nanoseconds (0: asks): DVT_ERROR_NOT_YET. */
DVT_API dvt_status dvt_event_wait(dvt_event *event, uint64_t nanoseconds, dvt_error *error);
DVT_API void dvt_event_free(dvt_event *event);

/* One host operation of one call of a program. `held[buffers[i]]` is what an earlier host
 * operation made for input i, where the input is all of it; else NULL. */
typedef struct {
    uint32_t struct_size;
    uint32_t call; /* which one: see dvt_host_call_at */
    uint32_t input_count, attribute_count, output_count;
    uint32_t into; /* bit i: output i has memory already, and the result belongs there */
    const dvt_tensor *const *inputs;
    const uint32_t *buffers;
    dvt_managed *const *held;
    const dvt_number *attributes;
    const dvt_tensor *const *outputs; /* as they must become; NULL: nobody needs it */
    dvt_managed **made; /* set by the host, but for outputs it wrote where they belong */
    void **kept; /* the host's own, kept for the next time: freed by dvt_open_options.host_free.
                    Used by one thread at a time. */
} dvt_host_operation;

/* Calls a host operation: fills made[i] with tensors of the shape, strides and dtype of
 * outputs[i]. Returns DVT_OK, or an error with its message set. */
typedef dvt_status (*dvt_host)(void *context, const dvt_host_operation *operation,
                               dvt_error *error);

/* Where the large memory of an artifact comes from: outputs, temporaries, copies of inputs and
 * state. (Tables of the program, what interpreted kernels hold while they run, and constants,
 * which artifacts of one source share, do not.) `allocate` returns `size` bytes that start at a
 * multiple of `alignment`, a power of two, or NULL: DVT_ERROR_MEMORY. `release` is given the
 * same numbers again. An output keeps a copy of this structure until its deleter is called, so
 * both functions and the context must outlive the outputs too. */
typedef struct {
    uint32_t struct_size;
    uint32_t reserved;
    void *context;
    void *(*allocate)(void *context, size_t size, size_t alignment);
    void (*release)(void *context, void *memory, size_t size, size_t alignment);
} dvt_allocator;

typedef struct {
    uint32_t struct_size;
    uint32_t flags;            /* DVT_OPEN_… */
    const uint8_t (*keys)[32]; /* Ed25519 public keys whose signatures are trusted */
    size_t key_count;
    uint32_t host_available; /* whether calls will come with a dvt_host */
    uint32_t reserved;
    void (*host_free)(void *kept); /* of a dvt_host_operation; may be NULL */
    dvt_plugin *const *plugins;    /* those that an artifact may find by name */
    size_t plugin_count;
    /* The most that one call may take; 0: no limit for a file that is trusted, else 2^46 steps
     * and three quarters of the machine's memory. UINT64_MAX: no limit. Steps are the points of
     * iteration spaces; memory is what the runtime allocates for a call and keeps for the next:
     * temporaries, outputs, copies of inputs, what interpreted kernels hold in each thread, and
     * the file's state; copied constants count for themselves. A call that would take more is
     * DVT_ERROR_LIMIT before it starts. */
    uint64_t max_work, max_memory;
    const dvt_allocator *allocator; /* NULL: the C library's; copied when this is opened */
} dvt_open_options;

#define DVT_OPEN_CHECK_CONSTANTS                                                               \
    1u /* check the digest of the constants before this returns: reads the whole file */
#define DVT_OPEN_INSPECT 4u /* verify and look, never run: no kernel, host or trust needed */
#define DVT_OPEN_TRUST   2u /* vouch for the file: run what needs trust, unsigned */
#define DVT_OPEN_COPY                                                                          \
    16u /* copy and check the constants before this returns, trusted or not                    \
         */
#define DVT_OPEN_CODE_ONLY                                                                     \
    32u /* leave kernel IR unread: generated kernels run as the file's native code or not at   \
         * all, and their operands are taken as they come; of use with DVT_OPEN_TRUST */
#define DVT_OPEN_MAY_OVERLAP                                                                   \
    8u /* inputs that are written to may share memory with others: the caller answers for it   \
        */

/* The bytes of an artifact. A file is opened once, and all of it but its constants is read once
 * into private memory and verified there: what happens to the file afterwards changes nothing.
 *
 * Constants are copied too, and their digest is checked, before the first run: when a file
 * signed by a trusted key is opened, else when it is first run. Those of a file opened with
 * DVT_OPEN_TRUST are mapped and not checked, which takes no time whatever their size; if such a
 * file is then changed or cut short, runs end with DVT_ERROR_CHANGED. To be able to say so, the
 * first mapping installs a handler of SIGBUS, which passes on what is not its own. */
typedef struct dvt_source dvt_source;
DVT_API dvt_status dvt_source_open(const char *path, dvt_source **source, dvt_error *error);
/* The same for bytes in memory, 64-byte aligned, which must stay as they are until all that was
 * opened of them is closed; then free_data(data) is called, unless it is NULL. */
DVT_API dvt_status dvt_source_memory(const void *data, size_t size, void (*free_data)(void *),
                                     dvt_source **source, dvt_error *error);
/* Artifacts that are open keep what they need of a source. */
DVT_API void dvt_source_close(dvt_source *source);

/* Open an artifact of a source, which can serve several. NULL options mean all zero. */
DVT_API dvt_status dvt_open_source(dvt_source *source, const dvt_open_options *options,
                                   dvt_artifact **artifact, dvt_error *error);
/* The same in one step, for a file and for bytes in memory. */
DVT_API dvt_status dvt_open(const char *path, const dvt_open_options *options,
                            dvt_artifact **artifact, dvt_error *error);
DVT_API dvt_status dvt_open_memory(const void *data, size_t size,
                                   const dvt_open_options *options, dvt_artifact **artifact,
                                   dvt_error *error);
DVT_API void dvt_close(dvt_artifact *artifact);

typedef struct {
    const char *name;
    dvt_dtype dtype;
    int32_t ndim;
    const int64_t *shape; /* -1: differs from call to call */
} dvt_tensor_info;

/* Whether the program writes to its inputs. */
DVT_API int dvt_writes_inputs(const dvt_artifact *artifact);
DVT_API size_t dvt_input_count(const dvt_artifact *artifact);
DVT_API size_t dvt_output_count(const dvt_artifact *artifact);
/* NULL past the last. Names and shapes live as long as the artifact. */
DVT_API const dvt_tensor_info *dvt_input_info(const dvt_artifact *artifact, size_t index);
DVT_API const dvt_tensor_info *dvt_output_info(const dvt_artifact *artifact, size_t index);

/* The position of an input or output by its name; SIZE_MAX: there is none. */
DVT_API size_t dvt_find_input(const dvt_artifact *artifact, const char *name);
DVT_API size_t dvt_find_output(const dvt_artifact *artifact, const char *name);

/* A dynamic size: what it is called, where it is read, and what it may be, both ends included
 * (`high` INT64_MAX: any). */
typedef struct {
    uint32_t struct_size;
    uint32_t input; /* of whose shape it is... */
    int32_t axis;   /* ... this dimension; -1: the value of that input, a 64-bit integer */
    uint32_t name_length;
    const char *name; /* not terminated */
    int64_t low, high;
} dvt_symbol_info;
DVT_API size_t dvt_symbol_count(const dvt_artifact *artifact);
/* DVT_ERROR_ARGUMENT past the last. */
DVT_API dvt_status dvt_symbol_at(const dvt_artifact *artifact, size_t index,
                                 dvt_symbol_info *info);

/* Bytes of a section by kind (see SPEC.md), NULL when the file has none; of the constants also
 * when they are damaged. */
DVT_API const void *dvt_section(const dvt_artifact *artifact, uint32_t kind, size_t *size);

/* The operator and the arguments (JSON) of a host call; neither is terminated.
 * DVT_ERROR_ARGUMENT past the last. */
typedef struct {
    uint32_t struct_size;
    uint32_t reserved;
    const char *op;
    size_t op_length;
    const char *arguments;
    size_t arguments_length;
} dvt_host_call;
DVT_API size_t dvt_host_call_count(const dvt_artifact *artifact);
DVT_API dvt_status dvt_host_call_at(const dvt_artifact *artifact, size_t index,
                                    dvt_host_call *call);

/* A device that the program runs on: the plug-in's name, its version when the file was made,
 * and the least plug-in ABI. DVT_ERROR_ARGUMENT past the last. */
typedef struct {
    uint32_t struct_size;
    uint32_t abi;
    const char *name, *version;
} dvt_device_info;
DVT_API dvt_status dvt_device_at(const dvt_artifact *artifact, size_t index,
                                 dvt_device_info *info);

/* A segment that a vendor compiled. Those of a device run over the plug-in ABI; the others are
 * host calls, numbered on from dvt_host_call_count, that the caller's dvt_host loads and runs.
 * `state` is the plug-in's verdict when the file was opened: 0 optimal, 1 usable, 2 better
 * recompiled. DVT_ERROR_ARGUMENT past the last. */
typedef struct {
    uint32_t struct_size;
    uint32_t on_device;            /* 0 or 1 */
    const char *owner, *arguments; /* not terminated: with their lengths */
    size_t owner_length, arguments_length;
    const void *data;
    size_t size;
    int32_t state;
} dvt_blob_info;
DVT_API dvt_status dvt_blob_at(const dvt_artifact *artifact, size_t index, dvt_blob_info *info);

/* 1: signed by a trusted key; 0: not signed; -1: signed, but by no key that is trusted; -2
 * (only with DVT_OPEN_INSPECT): signed the way of before format 1.3, which no longer counts. */
DVT_API int dvt_signature_state(const dvt_artifact *artifact);
/* The digest that signatures of this file sign (see SPEC.md). */
DVT_API void dvt_content_digest(const dvt_artifact *artifact, uint8_t digest[32]);

/* Whether the file may do what needs trust: it is signed by a trusted key, or the caller
 * vouched for it with DVT_OPEN_TRUST (docs/security.md). */
DVT_API int dvt_trusted(const dvt_artifact *artifact);

/* Generated kernels in the file: 1 run as native code, 0 there are none, -1 native code was not
 * loaded, because it is not trusted or made for another processor, and built-in kernels of the
 * same names serve instead, -2 the same, or there is none, and kernel IR is interpreted. */
DVT_API int dvt_code_state(const dvt_artifact *artifact);

/* Why native code was not loaded: the file is not trusted, it was made for another processor,
 * or the system does not let a process make memory executable. 0: it was, or there is none. */
#define DVT_CODE_UNTRUSTED 1
#define DVT_CODE_UNFIT     2
#define DVT_CODE_FORBIDDEN 3
DVT_API int dvt_code_refusal(const dvt_artifact *artifact);
/* Whether the system lets this process make memory executable that it has written. */
DVT_API int dvt_may_execute(void);

/* Native code, as a code section has it, that the caller generated from the kernel IR which
 * this artifact holds verified (dvt_section 14): its global function k<n> is the section's n-th
 * kernel, counted from 0. Kernels that were interpreted run as that code from now on, on
 * operands that their kernel IR has accepted; those that the code lacks stay interpreted. Once,
 * before the first run; the bytes are not needed afterwards. */
DVT_API dvt_status dvt_use_code(dvt_artifact *artifact, const void *code, size_t size,
                                dvt_error *error);

/* The best processor that this machine runs native code of, as code sections number them (see
 * SPEC.md); 0: it runs none. */
DVT_API uint32_t dvt_processor_number(void);

/* Arena bytes, their sum without sharing, and the largest set alive at once, for the sizes of
 * the last call (zero before the first). */
typedef struct {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t peak, total, bound;
} dvt_memory;
DVT_API dvt_status dvt_memory_used(dvt_artifact *artifact, dvt_memory *memory);

/* Bytes that each call clears, for the sizes of the last one: outputs and temporaries that the
 * program reads or returns and that it could not be shown to write. */
DVT_API uint64_t dvt_cleared_bytes(dvt_artifact *artifact);
/* Bytes of temporaries, for the sizes of the last call, that are no elements of the tensors
 * that they hold: halos, and what fills the last block where a tensor is packed. */
DVT_API uint64_t dvt_padding_bytes(dvt_artifact *artifact);

/* Has each run from now on measure its instructions. Call it before the first run; without it
 * nothing is measured and nothing costs time. */
DVT_API dvt_status dvt_measure(dvt_artifact *artifact, dvt_error *error);
/* The least time that an instruction has taken so far, in nanoseconds; 0: it has not run, or
 * nothing is measured. Those of a device may still be at work when the next one starts. */
DVT_API uint64_t dvt_least_time(const dvt_artifact *artifact, uint32_t instruction);
/* When an instruction began in the last run that came to it, by the system's monotonic clock,
 * and how long it took then, in nanoseconds; 0 and 0 as above. */
DVT_API void dvt_last_time(const dvt_artifact *artifact, uint32_t instruction, uint64_t *start,
                           uint64_t *taken);
DVT_API uint32_t dvt_instruction_count(const dvt_artifact *artifact);
/* What an instruction runs: a kernel, an operator of the host, a plug-in's kernel or the owner
 * of a blob; "copy" for a copy. Not terminated; it lasts as long as the artifact. */
DVT_API const char *dvt_instruction_name(const dvt_artifact *artifact, uint32_t instruction,
                                         size_t *length);

/* ---- State ----
 *
 * Buffers that a program writes to keep their contents from call to call: the cache of a
 * decoder, running statistics. An artifact has a state of its own, which serves where no other
 * is named; further ones, one for each user's sequence say, share its program, code and
 * constants and cost the memory of the buffers alone. */

typedef struct dvt_state dvt_state;

typedef struct {
    uint32_t struct_size;
    int32_t ndim;
    const char *name;
    const int64_t *shape; /* NULL: it varies, and the buffer can be reset and copied only */
    dvt_dtype dtype;
    uint32_t reserved;
} dvt_state_info;
/* How many buffers the state has; 0: the program keeps nothing. */
DVT_API size_t dvt_state_count(const dvt_artifact *artifact);
/* DVT_ERROR_ARGUMENT past the last. Name and shape live as long as the artifact. */
DVT_API dvt_status dvt_state_at(const dvt_artifact *artifact, size_t index,
                                dvt_state_info *info);
/* A new state: a copy of `like` as it is now, or as the file has it where `like` is NULL. To
 * copy the artifact's own, name it: dvt_own_state. It must be freed before the artifact is
 * closed. */
DVT_API dvt_status dvt_state_new(dvt_artifact *artifact, dvt_state *like, dvt_state **state,
                                 dvt_error *error);
DVT_API void dvt_state_free(dvt_state *state);
/* The artifact's own, not to be freed; NULL: its constants cannot be read. */
DVT_API dvt_state *dvt_own_state(dvt_artifact *artifact);
/* All buffers as the file has them. */
DVT_API dvt_status dvt_state_reset(dvt_state *state, dvt_error *error);
/* Copies a buffer to or from a tensor of its shape and dtype, in any layout. */
DVT_API dvt_status dvt_state_read(dvt_state *state, size_t index, const dvt_tensor *to,
                                  dvt_error *error);
DVT_API dvt_status dvt_state_write(dvt_state *state, size_t index, const dvt_tensor *from,
                                   dvt_error *error);

/* ---- Running ---- */

typedef struct {
    uint32_t struct_size;
    uint32_t threads; /* how many kernels may use; 0: as dvt_threads says */
    dvt_host host;    /* NULL: programs with host calls are refused */
    void *host_context;
    /* To stop a run from another thread or a signal handler: a number that becomes other than 0
     * and stays so until dvt_run returns DVT_ERROR_CANCELLED. Looked at between instructions
     * and between pieces of a kernel. Outputs are not set then; inputs and state that the
     * program had written to stay as they are, and the artifact can be used again. May be NULL.
     */
    const volatile int32_t *cancel;
    /* Or a function to be asked every 50 ms or so by the thread that called dvt_run: other than
     * 0 stops the run. May be NULL. */
    int (*poll)(void *context);
    void *poll_context;
    /* Told of each instruction before it begins (begins is 1) and after it ended (0), by the
     * thread that called dvt_run; not of the end of one that failed. May be NULL. */
    void (*trace)(void *context, uint32_t instruction, int begins);
    void *trace_context;
    /* Memory for outputs, one tensor for each: those with data are written there and their
     * place among the outputs is set to NULL; those without are made as ever, on the device
     * where theirs is DVT_DEVICE_BUFFER (and freed by their deleter). Shape and dtype
     * must be the output's (dvt_output_shape); the layout may be any, and may be that of an
     * input's memory; what has gaps, or overlaps an input, is filled by a copy at the end.
     * After a run that failed the contents are undefined. NULL: every output is made. */
    const dvt_tensor *results;
    dvt_state *state; /* NULL: the artifact's own */
    /* Run on this stream of a device that the program uses, and return before it is done; what
     * runs on other devices is waited for. NULL: everything is waited for. */
    dvt_stream *stream;
    dvt_event
        *done; /* recorded when the results are there; of use with `stream`. May be NULL */
} dvt_run_options;

/* Run once. Outputs are new tensors that belong to the caller; they are set only when the
 * result is DVT_OK. */
DVT_API dvt_status dvt_run(dvt_artifact *artifact, const dvt_run_options *options,
                           const dvt_tensor *inputs, size_t input_count, dvt_managed **outputs,
                           size_t output_count, dvt_error *error);

/* The same with tensors by name, in any order: every input, and those outputs that are wanted
 * (dvt_run_options.results goes with them). */
DVT_API dvt_status dvt_run_named(dvt_artifact *artifact, const dvt_run_options *options,
                                 const char *const *input_names, const dvt_tensor *inputs,
                                 size_t input_count, const char *const *output_names,
                                 dvt_managed **outputs, size_t output_count, dvt_error *error);

/* The shape of an output for inputs of these shapes; `rank` is the length of `shape`. Runs
 * nothing; of inputs whose value is a dynamic size the data is read. */
DVT_API dvt_status dvt_output_shape(dvt_artifact *artifact, const dvt_tensor *inputs,
                                    size_t input_count, size_t output, int64_t *shape,
                                    size_t rank, dvt_error *error);

/* One call of a batch. */
typedef struct {
    uint32_t struct_size;
    dvt_status status; /* set by dvt_run_batch */
    const dvt_tensor *inputs;
    size_t input_count;
    dvt_managed **outputs;
    size_t output_count;
    const dvt_tensor *results; /* as in dvt_run_options, whose own are not used */
    dvt_state *state;
    dvt_error *error; /* may be NULL */
} dvt_batch_call;
/* Many calls that do not depend on each other, each on one thread, as many at a time as there
 * are threads; one after the other, each on all threads, where there are fewer calls than
 * threads, or where they share a state, write to inputs, call the host or run on devices. Every
 * call gets a status; the first that is not DVT_OK, by their order, is returned. Those that
 * were not started when the batch was stopped are DVT_ERROR_CANCELLED. */
DVT_API dvt_status dvt_run_batch(dvt_artifact *artifact, const dvt_run_options *options,
                                 dvt_batch_call *calls, size_t count, dvt_error *error);

/* ---- Size programs ----
 *
 * A size program computes the integer sizes that a model needs at run time
 * (dimensions, strides, offsets) from the values of its symbols. It is a list
 * of instructions for a stack machine over int64; division and modulo round
 * towards minus infinity, as Python's do.
 */
enum {
    DVT_SIZE_PUSH = 0, /* push the operand */
    DVT_SIZE_LOAD = 1, /* push symbols[operand] */
    DVT_SIZE_ADD = 2,  /* pop b, pop a, push a + b; likewise below */
    DVT_SIZE_SUB = 3,
    DVT_SIZE_MUL = 4,
    DVT_SIZE_FLOORDIV = 5,
    DVT_SIZE_MOD = 6,
    DVT_SIZE_MAX = 7,
    DVT_SIZE_MIN = 8,
    DVT_SIZE_STORE = 9, /* pop a, outputs[operand] = a */
    /* Since format 1.6: numbers of floating point are the bits of a double. */
    DVT_SIZE_REAL = 10,     /* pop the integer a, push it as a double */
    DVT_SIZE_REAL_ADD = 11, /* pop b, pop a, push a + b of doubles; likewise below */
    DVT_SIZE_REAL_SUB = 12,
    DVT_SIZE_REAL_MUL = 13,
    DVT_SIZE_REAL_DIV = 14,
    DVT_SIZE_REAL_POW = 15,
    DVT_SIZE_REAL_MAX = 16,
    DVT_SIZE_REAL_MIN = 17,
    DVT_SIZE_REAL_SQRT = 18, /* pop a, push its square root */
    DVT_SIZE_FLOOR = 19,     /* pop the double a, push it as an integer; likewise below */
    DVT_SIZE_CEIL = 20,
    DVT_SIZE_TRUNC = 21,
    DVT_SIZE_ROUND = 22, /* to the nearest, halves to even */
};

/* The deepest stack a program may need; a deeper one is malformed. */
#define DVT_SIZE_STACK 256

typedef struct {
    int64_t opcode;
    int64_t operand;
} dvt_size_instruction;

/* Check a program once: known opcodes, indices in range, the stack neither
 * under- nor overflows and ends empty, each output stored exactly once.
 * A program that passes can be run with no further checks but arithmetic. */
DVT_API dvt_status dvt_size_verify(const dvt_size_instruction *code, size_t count,
                                   size_t symbol_count, size_t output_count);

/* Run a verified program. `outputs` is written only when the result is DVT_OK
 * for every instruction before the failing one. */
DVT_API dvt_status dvt_size_run(const dvt_size_instruction *code, size_t count,
                                const int64_t *symbols, int64_t *outputs);

/* ---- Digests and signatures ---- */

DVT_API void dvt_sha256(const void *data, size_t size, uint8_t digest[32]);

/* 1 if `signature` is `key`'s Ed25519 signature (RFC 8032) of the message, else 0. Strict:
 * every number in its one encoding, and neither the key nor the signature's point of small
 * order. */
DVT_API int dvt_ed25519_verify(const uint8_t signature[64], const uint8_t key[32],
                               const void *message, size_t size);
/* The public key of a 32-byte seed, and a signature with it. */
DVT_API void dvt_ed25519_public(const uint8_t seed[32], uint8_t key[32]);
DVT_API void dvt_ed25519_sign(const uint8_t seed[32], const void *message, size_t size,
                              uint8_t signature[64]);

#ifdef __cplusplus
}
#endif

#endif /* DOVETAIL_H */
