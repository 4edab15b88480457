/* device.h: the devices of an artifact, which plug-ins bring. Not installed. */
#ifndef DVT_DEVICE_H
#define DVT_DEVICE_H

#include "internal.h"
#include "plugin.h"

_Static_assert(sizeof(dvt_tensor) == sizeof(dvp_tensor) &&
                   offsetof(dvt_tensor, shape) == offsetof(dvp_tensor, shape) &&
                   offsetof(dvt_tensor, byte_offset) == offsetof(dvp_tensor, byte_offset),
               "both are DLPack's DLTensor");

/* ---- as the file has them; strings are the section's own, zero-terminated ---- */

typedef struct {
    const char *name, *version;
    uint32_t abi;
    uint32_t need_at, need_count;
} device_record;

typedef struct {
    const char *name;
    int64_t least;
} need_record;

typedef struct {
    uint32_t device; /* counted from 1, as everywhere */
    const char *op, *kernel;
    uint32_t least, greatest;
    uint32_t argument_at, argument_count;
    uint32_t hidden; /* inputs at the end that are scales and zero points */
    uint32_t operand_at, operand_count;
} operation_record;

/* An operand that is more than its buffer says; inputs are counted first, then outputs. */
typedef struct {
    uint32_t place;
    bool quantized, described, prepared;
    bool accepted; /* by the plug-in whose layout it claims to have */
    dvt_dtype dtype, real;
    uint32_t rank;
    uint32_t scales, zeros; /* inputs; DVT_NONE: one number holds for all */
    double scale;
    int64_t zero_point, least, greatest;
    const int64_t *block, *shape, *strides;
} operand_record;

typedef struct {
    const char *name;
    const char *text;     /* DVP_ATTR_TEXT */
    uint32_t kind, count; /* DVP_ATTR_... */
    uint32_t number_at;   /* the first of the instruction's attributes that it takes */
} argument_record;

typedef struct {
    span owner, arguments;
    uint32_t device; /* 0: the backend of this name, by the host's callback */
    const uint8_t *data;
    uint64_t size;
    int32_t state; /* DVP_BLOB_... */
} blob_record;

struct device_table {
    device_record *devices;
    need_record *needs;
    operation_record *operations;
    argument_record *arguments;
    blob_record *blobs;
    operand_record *operands;
    uint32_t operand_count;
    uint32_t device_count, need_count, operation_count, argument_count, blob_count;
    uint32_t launched; /* operations that instructions have taken so far */
};

/* ---- one device of an open artifact ---- */

typedef struct device_state {
    plugin *plugin;
    plugin_buffer *weights; /* one a buffer of the program */
    dvp_program **programs; /* one a blob of the table */
    uint64_t loaded;        /* the plug-in's generation when the programs were loaded */
    uint64_t epoch;         /* moves on when weights are given up, so that frames bind anew */
} device_state;

/* ---- and of a frame ---- */

typedef struct {
    plugin_buffer memory;
    uint64_t bytes;
    uint64_t bound;     /* the plug-in's generation that every handle belongs to; 0: none */
    uint64_t epoch;     /* the weights' */
    bool in_use;        /* by the run that is going on: its contents cannot be replaced */
    uint64_t placement; /* of the state that its buffers point at */
} device_arena;

/* A kernel call, or a call of a blob (kernel_name NULL), with its operands. */
typedef struct {
    dvp_op op;
    const instruction *in;
    const char *kernel_name;
    uint32_t least, greatest;
    const dvp_kernel *kernel;
} launch;

/* An input or output of a call; buffer NULL: it is the host's. */
typedef struct {
    struct dvt_buffer *buffer;
    uint64_t offset;
    bool in_place; /* the temporary that would be its copy is its memory, in this call */
} device_tensor;

/* Where the temporary is that an input or output can be: in the arena, or `memory` of a
 * caller's, NULL while that is not so. */
typedef struct {
    uint64_t arena_offset, offset;
    void *memory;
    uint64_t identity;
} shown_place;

struct device_frame {
    dvt_artifact *artifact;
    device_arena *arenas; /* one a device */
    launch *launches;
    dvp_tensor *tensors; /* as many as there are operands: outputs, then inputs */
    dvp_attribute *attributes;
    dvp_quantization *quantizations;    /* one a record of an operand */
    const dvp_quantization **quantized; /* one a tensor, as operations point at them */
    uint8_t *flags;                     /* likewise */
    /* The work of the last run, which nobody has waited for yet: on a lane NULL: none. */
    plugin_lane *flies_on;
    uint64_t turn, generation;
    device_tensor *inputs, *outputs; /* one each: those of this call that are on a device */
    shown_place *shown;              /* one an input, then one an output */
    plugin_graphs *graphs;           /* one an instruction, of use where a group begins */
    uint64_t *key;                   /* room for what they tell runs apart by */
    uint64_t *identities;            /* of the memory that each buffer lies in */
};

/* Points a buffer of the program at memory of a device's, from the start of that. */
static inline void dvt_device_point(frame *f, uint32_t buffer, const plugin_buffer *at)
{
    f->tensors[buffer].data = at->memory;
    f->devices->identities[buffer] = plugin_identity(at);
}

/* Notes where temporaries lie in the arena, which is planned. */
void dvt_device_shown_start(frame *f);
/* Points temporaries that a call's inputs and results can be at those, and the others at the
 * arena. `fresh`: all of them point there. True: something has moved. */
bool dvt_device_show(frame *f, uint32_t device, bool fresh);

/* ---- device_graph.c: launches that are recorded once and replayed ---- */
/* Gives a device an instruction that is no copy, with those after it that can go with it. */
int dvt_device_launch(frame *f, uint32_t at, const instruction *in, device_turn *turn,
                      plugin_error *error);
/* Whether a copy gives the device nothing to do: its two sides are one memory. */
bool dvt_device_copy_is_free(const frame *f, const instruction *in);

/* ---- device_pending.c ---- */
void dvt_device_note_pending(const frame *f, uint32_t at, const instruction *in,
                             device_turn *turn);

/* Points the launches on a device at the memory of their operands. */
void dvt_device_place_launches(frame *f, uint32_t device);

/* Operands that are more than their buffers say (device_operands.c): read, checked against an
 * instruction (what is wrong, or NULL), described to the plug-in once sizes are known, and
 * accepted by it where they are in its own layout. */
dvt_status dvt_operands_decode(const dvt_file *file, struct device_table *t, dvt_error *error);
const char *dvt_operands_check(const program *p, const instruction *in);
dvt_status dvt_operands_describe(const dvt_artifact *a, frame *f, launch *l, dvt_error *error);
dvt_status dvt_operands_accept(dvt_artifact *a, plugin *p, const launch *l, dvt_error *error);

/* A plug-in's error as ours. */
dvt_status dvt_plugin_failed(const plugin_error *from, dvt_error *error);

#endif
