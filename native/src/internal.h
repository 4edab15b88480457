/* internal.h: what the runtime's files share. Not installed. */
#ifndef DVT_INTERNAL_H
#define DVT_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "dovetail.h"
#include "dtypes.h"
#include "lock.h"

#include <stdatomic.h>
#include <stdbool.h>

#define DVT_MAX_RANK 16
#define DVT_ALIGN    64
#define DVT_NONE     UINT32_MAX

/* Sections by kind; the numbers are part of the format. */
enum {
    DVT_MANIFEST = 1,
    DVT_STRINGS = 2,
    DVT_SIZES = 3,
    DVT_BUFFERS = 4,
    DVT_PROGRAM = 5,
    DVT_GUARDS = 6,
    DVT_KERNELS = 7,
    DVT_HOST_CALLS = 8,
    DVT_CODE = 9,
    DVT_BLOBS = 10,
    DVT_CONSTANTS = 11,
    DVT_DEBUG = 12,
    DVT_SIGNATURE = 13,
    DVT_KERNEL_IR = 14,
    DVT_DEVICES = 15,
    DVT_LAYOUTS = 16,
    DVT_OPERANDS = 17,
    DVT_KINDS = 18,
};

/* What a reader must know to run a file; an unknown bit is refused. */
#define DVT_FEATURE_HOST     (1ull << 0)
#define DVT_FEATURE_CODE     (1ull << 1)
#define DVT_FEATURE_DEVICES  (1ull << 2)
#define DVT_FEATURE_BACKENDS (1ull << 3)
#define DVT_FEATURES                                                                           \
    (DVT_FEATURE_HOST | DVT_FEATURE_CODE | DVT_FEATURE_DEVICES | DVT_FEATURE_BACKENDS)

enum {
    KIND_INPUT,
    KIND_OUTPUT,
    KIND_CONSTANT,
    KIND_STATE,
    KIND_TEMPORARY,
    KIND_HOST,
    KIND_VIEW
};
/* What is kept of an instruction's time: the least, and when the last began and what it took.
 */
enum { TIME_LEAST, TIME_START, TIME_TAKEN, TIMES };
enum { OP_KERNEL = 1, OP_HOST = 2, OP_COPY = 3, OP_BLOB = 4, OP_LAUNCH = 5 };
enum { TAG_INT = 0, TAG_FLOAT = 1, TAG_SIZE = 2 };

typedef struct {
    const uint8_t *data;
    size_t size;
} span;

/* ---- error.c ---- */
/* Fills in a structure of the caller's, as far as its struct_size says that it goes. */
dvt_status dvt_fill(void *to, const void *from, uint32_t size);
dvt_status dvt_fail(dvt_error *error, dvt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* How much of a name from a file a message shows: the precision of its %.*s. */
static inline int dvt_shown(size_t size)
{
    return size > 200 ? 200 : (int)size;
}
/* Names from a file for a message, each once, as many as fit; ", …" stands for the rest. */
typedef struct {
    char text[300];
    size_t length;
    uint32_t count;
    span shown[16];
    bool cut; /* no further name will be shown */
} dvt_names;
void dvt_names_add(dvt_names *names, span name);

/* ---- file.c ---- */
typedef struct {
    dvt_source *source;
    const uint8_t *head;      /* header and section table */
    span sections[DVT_KINDS]; /* of the constants the size alone, until dvt_artifact_ready */
    uint64_t features;
    uint8_t root[32];
} dvt_file;

/* The digest of a section, as its entry in the table has it (see SPEC.md). */
void dvt_section_digest(uint32_t kind, uint32_t minor, span contents, uint8_t digest[32]);
/* What a signature covers: header and table less the signature's own entry and the fields that
 * it changes. */
void dvt_file_content_digest(const dvt_file *file, uint8_t digest[32]);

/* ---- the decoded program ---- */
typedef struct {
    span name;
    uint32_t input; /* buffer index */
    uint32_t axis;  /* DVT_NONE: the value of an int64 input of rank 0 */
    int64_t low, high;
} symbol_record;

typedef struct {
    span name;
    uint8_t kind;
    dvt_dtype dtype;
    uint8_t rank;
    uint32_t device;      /* 0: the host; n: device n - 1 of the table */
    uint32_t item;        /* bytes of one element */
    uint32_t base;        /* the buffer a view or in-place temporary is based on, or DVT_NONE */
    uint32_t root;        /* whose memory it uses */
    uint32_t owner;       /* views unfolded, in-place successors kept apart */
    const uint32_t *dims; /* rank sizes, then rank strides: indices of sizes */
    uint32_t offset;      /* index of a size */
    uint64_t data_at, data_size; /* constant and state: in the constants section */
    uint32_t first, last; /* owners: the instructions between which its contents are needed */
    uint32_t life_first, life_last; /* roots: those between which its memory is */
    uint32_t first_view, next_view; /* owners: a list of the views of it */
    bool handed_out;                /* a host buffer that is an output of the program */
    bool is_placed;    /* roots: in memory of state that stays on a device (device_state.c) */
    uint32_t resident; /* state: 1 + its place among what stays on devices; 0: it does not */
    const uint32_t *layout; /* pairs: size and zeros before it of each axis of the tensor that
                             * it holds, axis and step of each dimension; NULL: no other */
    uint8_t layout_rank;
} buffer_record;

typedef struct {
    uint32_t opcode;
    uint32_t index; /* of the kernel or host call */
    uint32_t output_count, input_count, attribute_count;
    const uint32_t *outputs, *inputs; /* buffers; DVT_NONE among outputs: unused */
    const uint8_t *attributes;        /* 16 bytes each: tag, size index, value */
    size_t pointers_at, numbers_at;   /* into a frame's arrays */
    const dvt_kernel *kernel;
    uint32_t device;    /* where it runs: 0 the host, n device n - 1 of the table */
    uint32_t launch_at; /* of launches and blobs on a device: its place among them */
    bool calls_host;    /* a host call, or a blob that the host's callback runs */
    uint32_t release_at, release_count; /* host buffers whose last use this is */
    uint32_t into; /* host: bit i: output i is memory that exists before the call */
} instruction;

typedef struct {
    uint32_t left, right;
} guard_record;

typedef struct {
    symbol_record *symbols;
    uint32_t symbol_count;
    uint32_t size_count;
    const dvt_size_instruction *code;
    size_t code_count;
    buffer_record *buffers;
    uint32_t buffer_count;
    instruction *instructions;
    uint32_t instruction_count;
    const uint32_t *inputs, *outputs;
    uint32_t input_count, output_count;
    guard_record *guards;
    uint32_t guard_count;
    const dvt_kernel **kernels;
    uint32_t kernel_count;
    dvt_host_call *host_calls;
    uint32_t host_call_count;
    size_t pointer_count, number_count; /* over all instructions */
    uint32_t *releases;
    uint32_t release_count;
    bool writes_inputs, writes_state;
    struct device_table *table; /* NULL: the program knows only the host */
    uint32_t device_count, launch_count, host_blob_count;
} program;

dvt_status dvt_program_decode(const dvt_file *file, program *p, dvt_error *error);
dvt_status dvt_program_flow(program *p, dvt_error *error); /* flow.c */
void dvt_program_free(program *p);

/* ---- layout.c ---- */
dvt_status dvt_layouts_decode(const dvt_file *file, program *p, dvt_error *error);

/* ---- limits.c ---- */
/* Three quarters of the machine's memory. */
uint64_t dvt_default_memory(void);
void dvt_limits_set(dvt_artifact *a, const dvt_open_options *options);
/* Adds to a total, and fails where that goes beyond the artifact's limit. */
dvt_status dvt_charge_memory(const dvt_artifact *a, uint64_t *total, uint64_t bytes,
                             const char *what, dvt_error *error);
dvt_status dvt_charge_work(const dvt_artifact *a, uint64_t *total, uint64_t steps, uint32_t at,
                           dvt_error *error);
/* The steps of a call of anything but kernel IR. UINT64_MAX: too many to be stopped between. */
uint64_t dvt_work_of(const dvt_call *call);

/* ---- plan.c ---- */
typedef struct {
    uint64_t size;
    uint32_t first, last;
    uint64_t offset; /* out */
} lifetime;
dvt_status dvt_plan(lifetime *lives, size_t count, dvt_memory *memory, dvt_error *error);

/* ---- frame.c: a program bound to the sizes of one call ---- */
/* Bytes of a buffer that are cleared before an instruction (see defined.c). */
typedef struct {
    uint32_t at, buffer;
    uint64_t begin, end;
} clearing;

/* Instructions in a row that are done by strands (see strands.c). */
typedef struct {
    uint32_t begin, end, strands;
} strand_stretch;

typedef struct frame {
    struct frame *next;
    int64_t *symbols;
    int64_t *sizes;
    dvt_tensor *tensors; /* one a buffer */
    uint64_t *offsets;   /* byte offset of each buffer in its root */
    uint64_t *extents;   /* bytes of each root */
    const dvt_tensor **pointers;
    dvt_number *numbers;
    dvt_call *calls;
    dvt_managed **held;        /* one a buffer: what host operations made */
    void **copies;             /* one an input: repacked inputs of this call */
    void **kept;               /* one an instruction: what a host keeps from call to call */
    unsigned char *is_shared;  /* one an instruction: whether threads shared it the last time */
    strand_stretch *stretches; /* in the order of instructions */
    uint32_t *strand_of;       /* one an instruction: within its stretch */
    uint32_t stretch_count, strand_threads; /* threads that they were made for */
    uint32_t kept_count;
    void (*host_free)(void *kept);
    unsigned char *arena;
    dvt_memory memory;
    uint64_t bytes;      /* what it takes: to keep it, and */
    uint64_t call_bytes; /* for the length of a call */
    uint64_t scratch;    /* what an interpreted kernel takes beside, in each thread, */
    uint64_t pieces;     /* in as many as this at most */
    clearing *clearings; /* in the order of instructions */
    uint64_t cleared;    /* bytes, all of them together */
    uint64_t padding;    /* bytes of temporaries that belong to no element of their tensors */
    uint32_t clearing_count, clearing_next;
    uint64_t state_number;          /* of the state that its buffers point at */
    const dvt_allocator *allocator; /* of its arena */
    unsigned char *gaps;  /* one a buffer: whether there is memory between its elements */
    unsigned char *zeros; /* as many as a device is sent at once; NULL: none */
    struct device_frame *devices; /* NULL: none */
} frame;

dvt_status dvt_frame_new(dvt_artifact *artifact, const int64_t *symbols, frame **made,
                         dvt_error *error);
void dvt_frame_free(frame *f);
/* Sees whether a buffer, whose shape is known, is the memory that its layout needs (layout.c).
 */
dvt_status dvt_layout_bind(const program *p, frame *f, uint32_t index, dvt_error *error);
/* The elements that a tensor reaches past its start; false: it does not fit 63 bits. */
bool dvt_reach(const dvt_tensor *t, uint64_t *elements);
/* The bytes of an element; 0: files know no such type. */
uint32_t dvt_item_size(dvt_dtype dtype);
/* Clears what must be before an instruction, on the host. */
void dvt_frame_clear(frame *f, uint32_t at);

/* ---- inputs.c ---- */
/* Their count, kinds, dtypes and ranks. */
dvt_status dvt_check_inputs(const dvt_artifact *a, const dvt_tensor *inputs, dvt_error *error);
dvt_status dvt_read_symbols(const program *p, const dvt_tensor *inputs, int64_t *values,
                            dvt_error *error);
/* Their shapes; then each is used where it lies, or copied. */
dvt_status dvt_bind_inputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                           dvt_error *error);
/* Copies back what was copied and written to. */
void dvt_return_inputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                       bool write_back);
/* The bytes that a tensor of a checked shape may touch; where its strides lead out of any
 * memory, all there are. */
void dvt_bounds(const dvt_tensor *t, uintptr_t *low, uintptr_t *high);
/* Points the views of a buffer at its memory. */
void dvt_bind_views(const program *p, frame *f, uint32_t owner);
bool dvt_is_empty(const dvt_tensor *t);
/* Whether two tensors cannot share memory, as they are not in the same buffer of a device. */
bool dvt_on_other_devices(const dvt_tensor *one, const dvt_tensor *other);
/* Whether a tensor lies as the program expects, so that it can be used where it is. */
bool dvt_fits_in_place(const dvt_tensor *t, const dvt_tensor *expected, uint32_t item);
/* Copies one layout to another; NULL strides mean row-major. */
void dvt_repack(const dvt_tensor *to, const dvt_tensor *from);

/* ---- device_decode.c, device.c, device_run.c: what plug-ins run; see device.h ---- */
dvt_status dvt_devices_decode(const dvt_file *file, program *p, dvt_error *error);
dvt_status dvt_devices_check(program *p, uint32_t at, dvt_error *error);
void dvt_devices_drop(program *p);
span dvt_blob_owner(const program *p, uint32_t blob);
span dvt_launch_name(const program *p, uint32_t operation);
dvt_status dvt_devices_open(dvt_artifact *a, const dvt_open_options *options, dvt_error *error);
/* Waits for devices that still read what is about to be freed. */
void dvt_devices_settle(const dvt_artifact *a);
void dvt_devices_close(dvt_artifact *a);
dvt_status dvt_devices_prepare(dvt_artifact *a, frame *f, dvt_error *error);
/* Describes every launch of a frame whose buffers have shapes, and asks the plug-ins. */
dvt_status dvt_devices_bind(dvt_artifact *a, frame *f, dvt_error *error);
void dvt_devices_unbind(frame *f);
/* The bytes that a frame's temporaries need on a device (counted from 1). */
void dvt_devices_reserve(frame *f, uint32_t device, uint64_t bytes);

/* Memory of the host's that a device may still read or write. */
typedef struct {
    uintptr_t low, high;
    bool written; /* by the device */
    int32_t mark; /* of the lane, behind what writes it; -1: there is none */
} pending_range;
enum { MOST_PENDING = 16 };

/* The device whose turn it is while a program runs: one of its lanes is the run's. */
typedef struct {
    struct dvt_plugin *plugin; /* NULL: no device's turn */
    struct plugin_lane *lane;
    uint32_t device;
    bool uploads, launches; /* given to a stream, and the other has not waited for it */
    bool sent_weights;
    struct dvt_state *state;    /* of the run; NULL: the program keeps none */
    struct plugin_lane *stream; /* the caller's, for its device; NULL: none */
    bool must_wait; /* the device uses memory of the host's that is not the caller's */
    bool waits;     /* the run has work for the host in the end */
    pending_range pending[MOST_PENDING];
    uint32_t pending_count; /* beyond MOST_PENDING: more than are listed */
    int32_t mark_count;
    uint32_t replayed_to; /* launches before this instruction were given as a graph */
} device_turn;
dvt_status dvt_device_step(frame *f, uint32_t at, const instruction *in, device_turn *turn,
                           dvt_error *error);
/* Waits for the device, so that the host may touch what was copied. */
dvt_status dvt_device_leave(frame *f, device_turn *turn, dvt_status status, dvt_error *error);
/* Ends a run's last turn; state that it computed is the state from now on. On a caller's stream
 * it is not waited for, unless that must be; `done` is recorded, if it is not NULL. */
dvt_status dvt_device_end(frame *f, device_turn *turn, struct dvt_event *done,
                          dvt_status status, dvt_error *error);
/* Before an instruction of the host's: waits for what the device is still at work on that this
 * has to do with, and no more. Ends the turn where that cannot be told. */
dvt_status dvt_device_await(frame *f, device_turn *turn, const instruction *in,
                            dvt_error *error);
/* The same for results of the host's that are given up after an instruction. */
dvt_status dvt_device_await_releases(frame *f, device_turn *turn, const instruction *in,
                                     dvt_error *error);
/* Whether a frame may serve a run on this stream (NULL: on none) right now. */
bool dvt_device_is_free(const frame *f, const struct plugin_lane *stream);
void dvt_device_start(frame *f);

/* ---- device_tensors.c: inputs and results that lie on a device ---- */
/* Finds out which may; once, when an artifact is opened. */
dvt_status dvt_device_tensors_plan(dvt_artifact *a, dvt_error *error);
/* Whether a tensor of a caller's is one that this buffer may be; messages call it so. */
dvt_status dvt_device_tensor_check(const dvt_artifact *a, uint32_t buffer, const dvt_tensor *t,
                                   const char *what, uint32_t number, dvt_error *error);
dvt_status dvt_device_input(const dvt_artifact *a, frame *f, uint32_t n, const dvt_tensor *t,
                            dvt_error *error);
dvt_status dvt_device_output(const dvt_artifact *a, frame *f, uint32_t n, const dvt_tensor *t,
                             dvt_error *error);
void dvt_device_tensors_clear(const dvt_artifact *a, frame *f);

/* ---- device_pending.c: memory of the host's that a device is at work on ---- */
dvt_status dvt_device_marks_plan(dvt_artifact *a, dvt_error *error);

/* ---- device_shown.c: such inputs and results as kernels use where they lie ---- */
dvt_status dvt_device_shown_plan(dvt_artifact *a, dvt_error *error);

/* ---- elf.c ---- */
typedef struct dvt_code dvt_code;
dvt_status dvt_code_load(span section, dvt_code **code, dvt_error *error);
void *dvt_code_symbol(const dvt_code *code, const char *name, size_t length);
void dvt_code_free(dvt_code *code);

/* ---- kernel_decode.c ---- */
typedef struct dvt_kernel_set dvt_kernel_set;
dvt_status dvt_kernels_decode(span section, dvt_kernel_set **set, dvt_error *error);
const dvt_kernel *dvt_kernels_find(const dvt_kernel_set *set, const char *name, size_t length);
void dvt_kernels_free(dvt_kernel_set *set);

/* ---- generated.c: the kernels of a program, and native code for those of the file ---- */
dvt_status dvt_kernels_bind(dvt_artifact *artifact, dvt_error *error);
void dvt_generated_free(dvt_artifact *artifact);
/* A kernel of the program, as the file calls it. */
span dvt_kernel_name(const dvt_artifact *artifact, uint32_t kernel);
/* The kernel IR that says what a kernel does, or NULL. */
const dvt_kernel *dvt_kernel_described(const dvt_kernel *kernel);

/* ---- kernel_plan.c ---- */
struct operand_use;
typedef struct {
    int64_t total; /* how often loops are entered and their bodies run */
    double unit;   /* instructions, for what native code does in one go */
    /* where it is interpreted: */
    uint64_t scratch; /* bytes, a thread */
    uint64_t pieces;  /* no more threads than these take part */
} kernel_work;
/* What a call of kernel IR does with its operands, and how long that takes. */
dvt_status dvt_kernel_ir_look(const dvt_call *call, struct operand_use *uses, kernel_work *work,
                              dvt_error *error);

/* ---- state.c ---- */
struct dvt_state {
    dvt_artifact *artifact;
    uint64_t number;           /* 0: the artifact's own; else no other ever had it */
    unsigned char **data;      /* one a buffer: private copies; NULL: not state */
    struct state_memory *held; /* one a resident of the artifact */
    uint64_t placement;        /* changes whenever memory of `held` does */
    dvt_lock lock;             /* held for a whole run, and by those who look */
};

struct dvt_artifact {
    dvt_file file;
    program program;
    dvt_code *code;                 /* the file's, where it is trusted */
    dvt_code *made;                 /* generated here from the file's kernel IR */
    dvt_kernel_set *kernel_set;     /* kernels that the file holds as kernel IR */
    struct own_kernel *own_kernels; /* one a kernel of the program, for those in native code */
    int signature, code_state;
    bool trusted;     /* a signature of a trusted key, or DVT_OPEN_TRUST */
    int code_refusal; /* why there is code that does not run; see dvt_code_refusal */
    bool inspect_only;
    bool may_overlap;
    bool may_map;   /* the caller trusts the file: its constants need no copy and no check */
    bool is_mapped; /* they are mapped: whether they changed is asked after each run */
    atomic_bool is_ready;          /* constants and state are there */
    dvt_lock ready_lock;           /* held while that is seen to */
    uint64_t max_work, max_memory; /* of one call */
    dvt_allocator allocator;       /* all zero: the C library's */
    dvt_state own_state;
    uint32_t state_count; /* buffers of state */
    dvt_tensor_info *infos;
    int64_t *info_shapes;
    int64_t *fixed_sizes; /* one a size: those that do not depend on inputs; -1: it does */
    char *info_names;
    void (*host_free)(void *kept);
    dvt_lock lock; /* brief: frames */
    frame *frames;
    uint32_t frame_count;
    dvt_memory memory;
    uint64_t cleared;             /* bytes, by each call */
    uint64_t padding;             /* bytes of its temporaries */
    uint64_t kept_bytes;          /* of the frames */
    _Atomic(uint64_t) *times;     /* TIMES an instruction, ns; NULL: nobody measures */
    struct device_state *devices; /* one a device of the table */
    struct resident *residents;   /* state that stays on devices */
    uint32_t *tensor_devices;     /* one a buffer: where an input or output may lie */
    uint32_t *shown; /* one an input, then one an output: the temporary that it can be */
    uint8_t *marked; /* one an instruction: it is a copy from a device that the host reads while
                        that has more to do */
    uint32_t resident_count;
};

/* ---- artifact.c ---- */
/* Sees to it that the constants may be read, before a frame is made. */
dvt_status dvt_artifact_ready(dvt_artifact *a, dvt_error *error);

/* ---- pool.c ---- */
/* How many threads this thread's kernels may use, 0: as dvt_set_threads says. Returns what was
 * asked for before. */
int dvt_ask_threads(int count);
void dvt_parallel(int64_t count, int64_t grain, dvt_body body, void *context);
/* Runs body in this thread, with the threads that help it kept at hand for all that it does in
 * parallel: those of OpenMP meet at barriers around it instead of around each of its jobs. What
 * body calls must not use OpenMP itself. */
void dvt_in_region(void (*body)(void *context), void *context);
/* Says whether this thread's run calls nobody who uses OpenMP, and returns what was said
 * before: then our own threads may serve it on cores that others keep busy. */
bool dvt_alone(bool alone);
/* How many jobs of this thread other threads were asked to help with, ever. */
uint64_t dvt_jobs_shared(void);
void dvt_pool_before_fork(void);
void dvt_pool_in_child(void);

/* ---- table.c ---- */
void dvt_table_before_fork(void);
void dvt_table_after_fork(void);

/* ---- kernels ---- */
type_id dvt_type_of(dvt_dtype dtype);
bool dvt_same_dtype(dvt_dtype a, dvt_dtype b);
int64_t dvt_numel(const dvt_tensor *t);
static inline char *dvt_data(const dvt_tensor *t)
{
    return (char *)t->data + t->byte_offset;
}
/* Copies src to dst of the same shape, converting between dtypes the kernels know; the same
 * dtype of any size is copied byte by byte. */
void dvt_copy_tensor(const dvt_tensor *dst, const dvt_tensor *src);
bool dvt_can_copy(dvt_dtype to, dvt_dtype from);
bool dvt_broadcasts(const dvt_tensor *from, const dvt_tensor *to);
/* Whether a kernel is a matrix product, which takes rows times columns times inner size. */
bool dvt_is_product(const dvt_kernel *kernel);
/* Whether a kernel puts rows in order, which takes longer by the bits of a row's length. */
bool dvt_is_sort(const dvt_kernel *kernel);
/* Whether a kernel sets some places of its first operand's contents. */
bool dvt_is_put(const dvt_kernel *kernel);
/* How many elements a call puts into places, more than any operand may have: dimensions that
 * have no index times those of the indices. 0: the kernel puts none; UINT64_MAX: too many. */
uint64_t dvt_put_positions(const dvt_call *call);

extern const dvt_kernel dvt_elementwise_kernels[], dvt_product_kernels[], dvt_row_kernels[],
    dvt_move_kernels[], dvt_scatter_kernels[], dvt_put_kernels[], dvt_sort_kernels[];
extern const size_t dvt_elementwise_count, dvt_product_count, dvt_row_count, dvt_move_count,
    dvt_scatter_count, dvt_put_count, dvt_sort_count;

/* On x86-64 the hot loops are compiled for several levels of processor (see processor.h).
 * Sanitizers get one version: they watch the same text, and compile it once. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                         \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DVT_SEVERAL_LEVELS 1
#endif

#endif
