/* dovetail_plugin.h: bring an accelerator to dovetail with a C library.
 *
 * This is the whole interface. A library implements it by exporting one function,
 *
 *     dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
 *                                      const dvp_plugin **plugin);
 *
 * which hands out a table of functions. `dovetail.load_plugin("libmyaccel.so")` then makes
 * `torch.compile(model, backend="myaccel")` work: operations that `query_op` accepts run on the
 * device, all others on the host. examples/accel_c is a complete plug-in.
 *
 * Rules
 * - Every structure starts with `struct_size`, set by whoever fills the structure in to the
 * size it knows, and is only ever appended to. Read no field that lies beyond it; write none.
 *   A plug-in built against an older or a newer header of the same major version keeps loading.
 * - Handles (dvp_device, dvp_stream, ...) are opaque to the host: the plug-in defines them.
 * - Whoever allocates frees. Strings that a plug-in hands out live as long as the library; what
 *   the host passes lives for the length of the call.
 * - A function that can fail returns DVP_OK, or another status with words in `error`. Nothing
 * may abort, throw or longjmp across this interface.
 * - Threads: any thread may call, none of them under Python's lock, and no function may wait
 *   for another call of the host's. Unless the plug-in says otherwise, the host makes one call
 *   at a time for one device. With DVP_PARALLEL_STREAMS in `dvp_info.flags` calls come from
 *   several threads at once, and each function says which:
 *   - [device]: alone, with no other call of this device under way but [any] ones
 *   - [memory]: beside calls of any stream, not beside another [memory] call
 *   - [stream]: beside calls of other streams; calls of one stream come one at a time
 *   - [any]: beside anything
 * - Functions marked (optional) may be NULL.
 */
#ifndef DOVETAIL_PLUGIN_H
#define DOVETAIL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define DVP_STATIC_ASSERT static_assert
#else
#define DVP_STATIC_ASSERT _Static_assert
#endif

/* The host loads plug-ins of its own major version. A new minor only appends. */
#define DVP_ABI_MAJOR 1u
#define DVP_ABI_MINOR 3u
#define DVP_ABI       (DVP_ABI_MAJOR << 16 | DVP_ABI_MINOR)

#if defined(_WIN32)
#define DVP_EXPORT __declspec(dllexport)
#else
#define DVP_EXPORT __attribute__((visibility("default")))
#endif

/* ---- Status and errors ---- */

typedef int32_t dvp_status;
enum {
    DVP_OK = 0,
    DVP_FAILED = 1,      /* this call failed; the next may work */
    DVP_INVALID = 2,     /* an argument is not what the interface promises */
    DVP_UNSUPPORTED = 3, /* understood, but not something this plug-in does */
    DVP_NO_MEMORY = 4,   /* the device has no room */
    DVP_DEVICE_LOST =
        5,             /* every handle of this device is dead; the host closes and reopens it */
    DVP_VERSION = 6,   /* the other side is too old or too new */
    DVP_TIMEOUT = 7,   /* 1.1: not done in the time given; of stream_wait and event_sync */
    DVP_CANCELLED = 8, /* 1.1: given up, because `cancelled` of the host said so */
};

typedef struct {
    uint32_t struct_size;
    char message[508]; /* zero-terminated UTF-8, written by the side that fails */
} dvp_error;

/* ---- Tensors: laid out as DLPack's DLTensor, so that a cast between the two is sound ---- */

enum {
    DVP_INT = 0,
    DVP_UINT = 1,
    DVP_FLOAT = 2,
    DVP_BFLOAT = 4,
    DVP_COMPLEX = 5,
    DVP_BOOL = 6,
    DVP_FLOAT8_E4M3FN = 10, /* 1.1; DLPack's code, as all of these are */
    DVP_FLOAT8_E5M2 = 12    /* 1.1 */
};
enum { DVP_HOST_MEMORY = 1, DVP_DEVICE_MEMORY = 12 }; /* DLPack's kDLCPU and kDLExtDev */

typedef struct {
    uint8_t code; /* DVP_INT ... */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} dvp_dtype;

typedef struct {
    void *data; /* what buffer_alloc gave; NULL while only a description */
    struct {
        int32_t type, id;
    } device;
    int32_t ndim; /* -1: this optional tensor argument was not given */
    dvp_dtype dtype;
    int64_t *shape;   /* DVP_DYNAMIC: differs from call to call (in query_op only) */
    int64_t *strides; /* in elements, never NULL */
    uint64_t byte_offset;
} dvp_tensor;

#define DVP_DYNAMIC INT64_MIN

/* Elements of four bits (1.3; DVP_INT and DVP_UINT of 4 bits) lie two in a byte, the first in
 * its low half; shapes and strides count elements.
 *
 * What the numbers of a quantised tensor stand for (1.3): (number - zero point) * scale. Blocks
 * of neighbours share both: `block` has their length along each dimension, 0 for all of it (one
 * for the whole tensor: 0 everywhere; one a channel: 1 along the channels). Where there are
 * several blocks, or the host does not know the numbers, they are tensors of the tensor's rank:
 * the scale of element i lies at the sum of i[d] / block[d] * strides[d] over all d whose block
 * is not 0. Their memory is the device's, like that of inputs. Scales are of a floating-point
 * type, zero points of an integer type. */
typedef struct {
    uint32_t struct_size;
    dvp_dtype real;          /* of what the numbers stand for: a floating-point type */
    const int64_t *block;    /* as many as the tensor has dimensions */
    double scale;            /* of all elements, where `scales` is NULL; finite and above 0 */
    int64_t zero_point;      /* likewise */
    int64_t least, greatest; /* the numbers lie between, both included */
    const dvp_tensor *scales;
    const dvp_tensor *zero_points;
} dvp_quantization;

/* ---- Operations ----
 *
 * An operation is one of PyTorch's, by its full name: "aten.addmm.default". Its tensor
 * arguments are `inputs`, in the order of its schema (a list of tensors takes one place for
 * each, and an attribute of the list's name holds how many). All other arguments are
 * attributes, in the order of the schema and by its names, defaults filled in: the same
 * argument of an operator has the same index in every call of it, unless one operand is a
 * number where another call has a tensor. A number in a tensor's place is an attribute of that
 * name.
 */
enum {
    DVP_ATTR_NONE = 0,  /* None */
    DVP_ATTR_INT = 1,   /* value.i; also bool */
    DVP_ATTR_FLOAT = 2, /* value.f */
    DVP_ATTR_TEXT = 3,  /* value.text; also dtypes ("float32"), devices, layouts */
    DVP_ATTR_INTS = 4,  /* value.ints[0 .. count) */
    DVP_ATTR_FLOATS = 5 /* value.floats[0 .. count) */
};

typedef struct {
    const char *name;
    int32_t kind;
    uint32_t count; /* of a list, else 1 */
    union {
        int64_t i; /* DVP_DYNAMIC: differs from call to call (in query_op only) */
        double f;
        const char *text;
        const int64_t *ints;
        const double *floats;
    } value;
} dvp_attribute;

/* What an attribute is in PyTorch's schema, beside how it is written (1.1). */
enum {
    DVP_TYPE_OTHER = 0, /* as its kind says */
    DVP_TYPE_BOOL = 1,  /* DVP_ATTR_INT, 0 or 1 */
    DVP_TYPE_DTYPE = 2, /* DVP_ATTR_TEXT */
    DVP_TYPE_DEVICE = 3,
    DVP_TYPE_LAYOUT = 4,
    DVP_TYPE_MEMORY_FORMAT = 5
};

/* What is known of an operand (1.1). */
enum {
    DVP_OPERAND_CONSTANT = 1, /* the same bytes at every call, until the host says otherwise */
    DVP_OPERAND_PREPARED = 2  /* its memory is what constant_prepare made of it */
};

typedef struct {
    uint32_t struct_size;
    uint32_t input_count, output_count, attribute_count;
    const char *name;
    const dvp_tensor *inputs;
    const dvp_tensor *outputs; /* none when query_op is asked before the result is known */
    const dvp_attribute *attributes;
    const uint8_t *attribute_types; /* 1.1: DVP_TYPE_..., one an attribute; NULL: not known */
    const uint8_t *input_flags;     /* 1.1: DVP_OPERAND_..., one an input; NULL: none */
    /* 1.3: one an input, then one an output, NULL for what is not quantised; NULL: none is. An
     * operation on quantised tensors computes what it would of the numbers that they stand for,
     * and rounds its result to the nearest that its own can stand for, ties to even. */
    const dvp_quantization *const *quantization;
} dvp_op;

/* query_op's answer. The host zeroes it, and sets struct_size to how much it can take. */
typedef struct {
    uint32_t struct_size;
    uint32_t supported;   /* 0 or 1 */
    double cost;          /* estimated seconds; 0: no idea, but gladly */
    const char *kernel;   /* the kernel that will run it, by name ... */
    uint32_t min_version; /* ... and the versions that would do, both ends included */
    uint32_t max_version; /* 0: any */
    const char *reason;   /* when not supported: shown to the user */
} dvp_answer;

/* ---- What a plug-in says of itself; zeroed and sized by the host like dvp_answer ---- */

typedef struct {
    uint32_t struct_size;
    uint32_t abi;          /* DVP_ABI of the header it was built against */
    const char *name;      /* the backend's name: letters, digits, '_', '-', '.' */
    const char *version;   /* of the plug-in; changes whenever its results may */
    const char *device;    /* the kind of device, in words */
    uint32_t flags;        /* 1.1: DVP_PARALLEL_STREAMS */
    uint32_t device_count; /* 1.1: how many device_open can open; 0: one */
    /* 1.3: the device of PyTorch's ("privateuseone", or what it was renamed to) whose tensors'
     * memory is this plug-in's: any address in there is a handle of memory, as buffer_alloc's
     * are. NULL: there is none. */
    const char *torch_device;
} dvp_info;

enum {
    DVP_PARALLEL_STREAMS = 1, /* the threading rule of each function holds, see above */
    /* 1.3: */
    DVP_DYNAMIC_SEGMENTS = 2, /* segment_compile takes sizes that differ from call to call */
    DVP_CONSTANT_DATA = 4,    /* ... and uses the contents of constants, where it gets them */
    DVP_IMPORTED_CONSTANTS =
        8, /* constants of files stay in the host's memory: memory_import */
    DVP_QUANTIZED_OPERATIONS = 16, /* query_op knows `quantization` of operations */
    /* The handle of memory is its address: a handle that comes again after buffer_free is the
     * same memory, so that what was recorded with it may be replayed. Without it that is
     * recorded anew. */
    DVP_ADDRESS_HANDLES = 32
};

/* What a device says of itself before it is opened (1.1); filled in like dvp_info. */
typedef struct {
    uint32_t struct_size;
    uint32_t alignment;    /* of buffers, in bytes */
    const char *name;      /* of this device, in words */
    uint64_t memory_bytes; /* 0: not told */
    uint32_t memory_kinds; /* 1.2: all DVP_MEMORY_... that it has; 0: device memory alone */
    uint32_t reserved;
} dvp_device_info;

/* Kinds of memory (1.2). */
enum {
    DVP_MEMORY_DEVICE = 1,  /* buffer_alloc's */
    DVP_MEMORY_PINNED = 2,  /* the host's, which copies reach with no detour */
    DVP_MEMORY_UNIFIED = 4, /* kernels and the host both use it where it lies */
    DVP_MEMORY_IMPORTED = 8 /* the host's own, given to the device: memory_import */
};

/* ---- What the host offers ---- */

typedef struct {
    uint32_t struct_size;
    uint32_t abi;
    void *context;
    void (*log)(void *context, int32_t level, const char *message); /* 10 debug ... 40 error */

    /* 1.1; all of them [any]. Memory of the host, zeroed, `alignment` a power of two; NULL:
     * there is none. What happens between span_begin and span_end is shown in profiles under
     * its name; both in one thread, the last begun ends first. */
    void *(*alloc)(void *context, uint64_t bytes, uint64_t alignment);
    void (*free)(void *context, void *memory);
    uint64_t (*span_begin)(void *context, const char *name);
    void (*span_end)(void *context, uint64_t span);
    /* Whether the call that this thread is in should end soon, with DVP_CANCELLED. */
    int32_t (*cancelled)(void *context);
    /* How far a long call is (a compiler's), 0 to 1. */
    void (*progress)(void *context, const char *what, double done);
} dvp_host;

/* ---- The table ---- */

typedef struct dvp_device dvp_device;
typedef struct dvp_stream dvp_stream;
typedef struct dvp_event dvp_event;
typedef struct dvp_kernel dvp_kernel;
typedef struct dvp_program dvp_program;
typedef struct dvp_graph dvp_graph;

enum { DVP_HOST_TO_DEVICE = 1, DVP_DEVICE_TO_HOST = 2, DVP_DEVICE_TO_DEVICE = 3 };

/* One copy. `offset`s are bytes from the start of a buffer; host pointers have none. */
typedef struct {
    uint32_t struct_size;
    int32_t direction;
    void *destination;
    uint64_t destination_offset;
    const void *source;
    uint64_t source_offset;
    uint64_t bytes;
} dvp_copy;

/* Whether a compiled blob suits this device and this version of the plug-in. */
enum {
    DVP_BLOB_OPTIMAL = 0,
    DVP_BLOB_USABLE = 1,             /* runs, not at its best */
    DVP_BLOB_PREFER_RECOMPILING = 2, /* runs, but a new one would be much better */
    DVP_BLOB_UNSUPPORTED = 3
};

/* A size that differs from call to call (1.3), by itself a symbol or a sum or product of them.
 */
typedef struct {
    uint32_t struct_size;
    uint32_t reserved;
    const char *text;        /* "s0", "2*s0 + 1": the same text is the same size */
    int64_t least, greatest; /* both included; INT64_MAX: any */
    int64_t multiple;        /* it is a multiple of this; 1: of nothing in particular */
} dvp_size;

/* A piece of a graph: operations in an order in which they can run. Where they take and leave
 * tensors stands beside each: indices into `tensors` (-1: not given), those of scales and zero
 * points behind the operation's own inputs. A tensor may be a view of
 * another, its base, `byte_offset` into it; -1 in `bases`: it has memory of its own. */
typedef struct {
    uint32_t struct_size;
    uint32_t tensor_count, op_count, input_count, output_count, reserved;
    const dvp_tensor *tensors;
    const dvp_op *ops;
    const int32_t *const *op_inputs;
    const int32_t *const *op_outputs;
    const int32_t *bases;
    const int32_t *inputs;
    const int32_t *outputs;

    /* 1.3. Contents of constants, in the layout of their tensors: one a tensor, NULL where they
     * are not known. For plug-ins with DVP_CONSTANT_DATA. */
    const void *const *data;
    /* One a tensor: the compiler writes a 1 for an input whose contents it was given and has
     * put into its code, in whatever layout it likes. The host then keeps no copy of that
     * input, and passes it with no memory (`data` NULL, ndim -1) to program_run. */
    uint8_t *absorbed;
    /* With DVP_DYNAMIC_SEGMENTS: the sizes that are DVP_DYNAMIC in `tensors`, and which of them
     * each is: shape, then strides, -1 for one that is a number. The code runs with all sizes
     * in their ranges, which program_run gets as numbers. */
    uint32_t size_count, reserved_sizes;
    const dvp_size *sizes;
    const int32_t *const *dims;
} dvp_segment;

/* Operations lie `struct_size` of the first apart, which need not be this header's sizeof (the
 * host lays them out as ABI 1.0 has them for a plug-in of that version). */
static inline const dvp_op *dvp_segment_op(const dvp_segment *segment, uint32_t index)
{
    return (const dvp_op *)(const void *)((const char *)segment->ops +
                                          (uint64_t)index * segment->ops->struct_size);
}

typedef struct {
    uint32_t struct_size;
    uint32_t abi; /* DVP_ABI */

    /* [any] */
    dvp_status (*get_info)(dvp_info *info, dvp_error *error);

    /* Devices. Attributes are numbers by name; "memory.used" (bytes in buffers) lets the host
     * notice leaks. An unknown name is DVP_UNSUPPORTED. [device]; device_get: [memory] */
    dvp_status (*device_open)(int32_t index, dvp_device **device, dvp_error *error);
    void (*device_close)(dvp_device *device);
    dvp_status (*device_get)(dvp_device *device, const char *name, int64_t *value,
                             dvp_error *error);
    dvp_status (*device_set)(dvp_device *device, const char *name, int64_t value,
                             dvp_error *error); /* (optional) */

    /* Buffers: at least 64-byte aligned for the device; `memory` need not be an address. A copy
     * is in order with what else its stream does; host memory stays valid until then. The host
     * frees a buffer when nothing that it gave to a stream uses it any more.
     * alloc and free: [memory]; copy: [stream] */
    dvp_status (*buffer_alloc)(dvp_device *device, uint64_t bytes, void **memory,
                               dvp_error *error);
    void (*buffer_free)(dvp_device *device, void *memory);
    dvp_status (*buffer_copy)(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                              dvp_error *error);

    /* Streams: what is given to one happens in order. An event is a point in a stream that
     * other streams can wait for. An error of earlier work may surface in stream_sync.
     * create and destroy: [memory]; the others: [stream], event_wait of the waiting one */
    dvp_status (*stream_create)(dvp_device *device, dvp_stream **stream, dvp_error *error);
    void (*stream_destroy)(dvp_device *device, dvp_stream *stream);
    dvp_status (*stream_sync)(dvp_device *device, dvp_stream *stream, dvp_error *error);
    dvp_status (*event_create)(dvp_device *device, dvp_event **event, dvp_error *error);
    void (*event_destroy)(dvp_device *device, dvp_event *event);
    dvp_status (*event_record)(dvp_device *device, dvp_event *event, dvp_stream *stream,
                               dvp_error *error);
    dvp_status (*event_wait)(dvp_device *device, dvp_stream *stream, dvp_event *event,
                             dvp_error *error);

    /* Whether an operation can run on the device. A refusal is DVP_OK with supported = 0. The
     * same operation must get the same answer every time. PyTorch's operations are well-formed;
     * one that comes from a file is asked about with every size known and may be anything:
     * refuse operands that are missing and shapes that do not fit together. [any] */
    dvp_status (*query_op)(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                           dvp_error *error);

    /* The kernel of this name with the highest version in [min, max] (max 0: no upper end), or
     * DVP_UNSUPPORTED. It lives until the device is closed. [any] */
    dvp_status (*find_kernel)(dvp_device *device, const char *name, uint32_t min_version,
                              uint32_t max_version, const dvp_kernel **kernel,
                              uint32_t *version, dvp_error *error);

    /* Run a kernel on an operation that query_op accepted: every size is known, every tensor
     * has device memory, outputs have the strides they were described with. [stream] */
    dvp_status (*execute)(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                          const dvp_op *op, dvp_error *error);

    /* (optional, all six or none) Whole segments: compile to bytes, which the host keeps and
     * may load in another process. The segment's operations were all accepted by query_op.
     * program_run: [stream]; the others: [memory] */
    dvp_status (*segment_compile)(dvp_device *device, const dvp_segment *segment,
                                  const void **blob, uint64_t *bytes, dvp_error *error);
    void (*blob_free)(dvp_device *device, const void *blob);
    dvp_status (*blob_check)(dvp_device *device, const void *blob, uint64_t bytes,
                             int32_t *state, dvp_error *error);
    dvp_status (*program_load)(dvp_device *device, const void *blob, uint64_t bytes,
                               dvp_program **program, dvp_error *error);
    void (*program_free)(dvp_device *device, dvp_program *program);
    dvp_status (*program_run)(dvp_device *device, dvp_stream *stream, dvp_program *program,
                              const dvp_tensor *inputs, uint32_t input_count,
                              const dvp_tensor *outputs, uint32_t output_count,
                              dvp_error *error);

    /* ---- 1.1, each of them (optional) ---- */

    /* A device by number, whether or not it is open. [any] */
    dvp_status (*device_describe)(int32_t index, dvp_device_info *info, dvp_error *error);

    /* As stream_sync, but DVP_TIMEOUT where work is left after so many nanoseconds: a stream
     * that goes on. Then the host can give up, or be interrupted, while a kernel never ends.
     * [stream] */
    dvp_status (*stream_wait)(dvp_device *device, dvp_stream *stream, uint64_t nanoseconds,
                              dvp_error *error);

    /* A copy from another device of this plug-in (DVP_DEVICE_TO_DEVICE, the source's memory is
     * `from`'s), on a stream of `device`. The host has waited for what wrote the source.
     * [stream, and memory of `from`] */
    dvp_status (*buffer_copy_peer)(dvp_device *device, dvp_stream *stream, dvp_device *from,
                                   const dvp_copy *copy, dvp_error *error);

    /* The device's own layout of a constant operand: memory that the host then passes in its
     * place, with DVP_OPERAND_PREPARED, to every execution of this operation, and frees like a
     * buffer. The tensor keeps its description; what the bytes mean is the plug-in's business.
     * NULL in *memory: it stays as it is. The stream is waited for before the plain copy is
     * given up. [stream and memory] */
    dvp_status (*constant_prepare)(dvp_device *device, dvp_stream *stream, const dvp_op *op,
                                   uint32_t input, void **memory, dvp_error *error);

    /* ---- 1.2, each of them (optional) ---- */

    /* Waits until all that an event was recorded behind is done, at most so many nanoseconds:
     * DVP_TIMEOUT then. An error of that work is given here, and again by stream_sync, which
     * alone takes it back. Without it the host waits for the whole stream. [any] */
    dvp_status (*event_sync)(dvp_device *device, dvp_event *event, uint64_t nanoseconds,
                             dvp_error *error);

    /* Memory of a kind that the device said it has, zeroed: a handle like buffer_alloc's, and
     * the address at which the host uses it; buffer_free frees it. A buffer_copy that names an
     * address in there is one of this memory. The host orders what it does with it, and what
     * streams do, by waiting. DVP_UNSUPPORTED: another kind. [memory] */
    dvp_status (*memory_alloc)(dvp_device *device, uint32_t kind, uint64_t bytes, void **memory,
                               void **address, dvp_error *error);

    /* A handle for memory that the host has already, with no copy of it; buffer_free lets go of
     * it and leaves it as it is, while it is still there. DVP_UNSUPPORTED: not this memory, the
     * host copies it then. [memory] */
    dvp_status (*memory_import)(dvp_device *device, void *address, uint64_t bytes,
                                void **memory, dvp_error *error);

    /* ---- 1.3, (optional), all three or none ---- */

    /* The device's own layout of a constant operand as bytes, which a file then holds in the
     * tensor's place: op->inputs[input].data is the host's memory, laid out as described. NULL
     * in *packed: it stays as it is. Else, when the file is loaded, constant_accept judges
     * bytes that claim to be such a layout (a file may say anything), they are sent to memory
     * of the device, and that is passed to execute with DVP_OPERAND_PREPARED. [memory]; accept:
     * [any] */
    dvp_status (*constant_pack)(dvp_device *device, const dvp_op *op, uint32_t input,
                                const void **packed, uint64_t *bytes, dvp_error *error);
    void (*packed_free)(dvp_device *device, const void *packed);
    dvp_status (*constant_accept)(dvp_device *device, const dvp_op *op, uint32_t input,
                                  const void *packed, uint64_t bytes, dvp_error *error);

    /* The others of 1.3, each of them (optional). */

    /* A stream that the vendor's own library made (`native` is what it calls a stream, as a
     * cudaStream_t) as one of the interface's. Work that either side gives it happens in order.
     * stream_destroy lets go of it and leaves the native one as it is. The caller keeps that
     * until then. [memory] */
    dvp_status (*stream_import)(dvp_device *device, void *native, dvp_stream **stream,
                                dvp_error *error);
    /* What the vendor's own library calls a stream of stream_create. It lives as long as that
     * one. [any] */
    dvp_status (*stream_native)(dvp_device *device, dvp_stream *stream, void **native,
                                dvp_error *error);

    /* (all four or none) Between capture_begin and capture_end what the stream is given is
     * noted, not done: calls of `execute` and program_run, and copies within the device. The
     * host gives it nothing else meanwhile, and no call of another stream concerns it. One that
     * cannot be noted fails with DVP_UNSUPPORTED; the host then ends the capture, whose graph
     * it frees or which fails too, and gives the work as ever. graph_launch does all that was
     * noted, in order, on any stream of the device, with the memory that the calls named, all
     * of which is still there; a graph may run many times, not beside itself. The host frees it
     * when no launch of it is under way. Attributes and shapes of the calls are the host's
     * again when they return. begin, end and launch: [stream]; free: [memory] */
    dvp_status (*capture_begin)(dvp_device *device, dvp_stream *stream, dvp_error *error);
    dvp_status (*capture_end)(dvp_device *device, dvp_stream *stream, dvp_graph **graph,
                              dvp_error *error);
    dvp_status (*graph_launch)(dvp_device *device, dvp_stream *stream, dvp_graph *graph,
                               dvp_error *error);
    void (*graph_free)(dvp_device *device, dvp_graph *graph);
} dvp_plugin;

/* What every table must hold: all before the first optional group. */
#define DVP_PLUGIN_REQUIRED offsetof(dvp_plugin, segment_compile)

/* The one exported symbol. `host_abi` is the host's DVP_ABI: a plug-in that needs a newer host
 * returns DVP_VERSION. `host` and the table stay valid for the life of the process. */
#define DVP_QUERY_SYMBOL "dovetail_plugin_query"
typedef dvp_status (*dvp_query)(uint32_t host_abi, const dvp_host *host,
                                const dvp_plugin **plugin);
DVP_EXPORT dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                            const dvp_plugin **plugin);

/* ---- The layout, held still (64-bit) ---- */

DVP_STATIC_ASSERT(sizeof(void *) == 8, "the ABI is for 64-bit machines");
DVP_STATIC_ASSERT(sizeof(dvp_error) == 512, "dvp_error");
DVP_STATIC_ASSERT(sizeof(dvp_dtype) == 4, "dvp_dtype");
DVP_STATIC_ASSERT(sizeof(dvp_tensor) == 48 && offsetof(dvp_tensor, ndim) == 16 &&
                      offsetof(dvp_tensor, dtype) == 20 && offsetof(dvp_tensor, shape) == 24 &&
                      offsetof(dvp_tensor, byte_offset) == 40,
                  "dvp_tensor is DLPack's DLTensor");
DVP_STATIC_ASSERT(sizeof(dvp_attribute) == 24 && offsetof(dvp_attribute, value) == 16,
                  "dvp_attribute");
DVP_STATIC_ASSERT(sizeof(dvp_op) >= 64 && offsetof(dvp_op, name) == 16 &&
                      offsetof(dvp_op, attributes) == 40 &&
                      offsetof(dvp_op, attribute_types) == 48 &&
                      offsetof(dvp_op, input_flags) == 56 &&
                      offsetof(dvp_op, quantization) == 64,
                  "dvp_op");
DVP_STATIC_ASSERT(sizeof(dvp_quantization) >= 64 && offsetof(dvp_quantization, scale) == 16 &&
                      offsetof(dvp_quantization, scales) == 48,
                  "dvp_quantization");
DVP_STATIC_ASSERT(sizeof(dvp_size) >= 40 && offsetof(dvp_size, multiple) == 32, "dvp_size");
DVP_STATIC_ASSERT(sizeof(dvp_answer) >= 40 && offsetof(dvp_answer, cost) == 8 &&
                      offsetof(dvp_answer, reason) == 32,
                  "dvp_answer");
DVP_STATIC_ASSERT(sizeof(dvp_info) >= 48 && offsetof(dvp_info, device) == 24 &&
                      offsetof(dvp_info, flags) == 32 && offsetof(dvp_info, torch_device) == 40,
                  "dvp_info");
DVP_STATIC_ASSERT(sizeof(dvp_device_info) >= 24, "dvp_device_info");
DVP_STATIC_ASSERT(sizeof(dvp_host) >= 72 && offsetof(dvp_host, log) == 16 &&
                      offsetof(dvp_host, alloc) == 24 && offsetof(dvp_host, progress) == 64,
                  "dvp_host");
DVP_STATIC_ASSERT(sizeof(dvp_copy) >= 48 && offsetof(dvp_copy, bytes) == 40, "dvp_copy");
DVP_STATIC_ASSERT(sizeof(dvp_segment) >= 120 && offsetof(dvp_segment, outputs) == 72 &&
                      offsetof(dvp_segment, data) == 80 && offsetof(dvp_segment, dims) == 112,
                  "dvp_segment");
DVP_STATIC_ASSERT(offsetof(dvp_plugin, get_info) == 8 &&
                      offsetof(dvp_plugin, buffer_alloc) == 48 &&
                      offsetof(dvp_plugin, stream_create) == 72 &&
                      offsetof(dvp_plugin, query_op) == 128 &&
                      offsetof(dvp_plugin, execute) == 144 && DVP_PLUGIN_REQUIRED == 152 &&
                      offsetof(dvp_plugin, device_describe) == 200 &&
                      offsetof(dvp_plugin, constant_prepare) == 224 &&
                      offsetof(dvp_plugin, event_sync) == 232 &&
                      offsetof(dvp_plugin, memory_alloc) == 240 &&
                      offsetof(dvp_plugin, constant_pack) == 256 &&
                      offsetof(dvp_plugin, stream_import) == 280 &&
                      offsetof(dvp_plugin, capture_begin) == 296 && sizeof(dvp_plugin) >= 328,
                  "dvp_plugin");

#ifdef __cplusplus
}
#endif

#endif /* DOVETAIL_PLUGIN_H */
