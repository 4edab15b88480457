/* wire.h: what the driver (in the host's process) and the device (a process of its own) share:
 * a piece of shared memory with a queue and a window a stream. Device memory is not in it. */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SIM_STREAMS = 16,
    SIM_SLOTS = 32,         /* commands that wait in a stream */
    SIM_WINDOW = 256 << 10, /* bytes that a copy moves at a time */
    SIM_TENSORS = 16,
    SIM_RANK = 6,
    SIM_INTS = 16,
    SIM_FLOATS = 4,
    SIM_TILE = 16, /* rows and columns of a tile of a prepared matrix */
    SIM_ALIGN = 64,
    SIM_GRAPHS = 64,
    SIM_PAGE = 64 << 10,
    SIM_HEAP = 16 << 20 /* bytes that host and device both see, behind sim_shared */
};

enum sim_command_kind {
    SIM_COPY_IN,
    SIM_COPY_OUT,
    SIM_COPY,      /* within the device, and what both see */
    SIM_READ_HOST, /* the device reads and writes the host's memory by itself */
    SIM_WRITE_HOST,
    SIM_WAIT,
    SIM_KERNEL,
    SIM_PREPARE,
    SIM_REPLAY /* all that was noted in a graph */
};

typedef struct {
    uint64_t address; /* in the device's own memory */
    uint64_t room;    /* bytes of the buffer from there on */
    int32_t rank;     /* -1: not given */
    uint8_t code, bits, prepared, quantized;
    int64_t shape[SIM_RANK], strides[SIM_RANK];
    /* Of a quantised one: neighbours that share a scale (0: all), and what is the same for all;
     * tensors of the command that hold a scale and a zero point for each block, or -1. */
    int64_t block[SIM_RANK];
    double scale;
    int64_t zero, least, greatest;
    int32_t scales, zeros;
} sim_tensor;

typedef struct {
    int32_t kind; /* enum sim_command_kind */
    int32_t kernel, variant;
    uint32_t stream, upto; /* SIM_WAIT */
    /* Not 0: the command is noted there, at `place`; of SIM_REPLAY, which has its fault there.
     */
    uint32_t graph, place;
    uint64_t destination, source, bytes; /* copies; the host's side is the driver's business */
    int32_t fault;                       /* enum sim_fault */
    uint32_t inputs, outputs, scales;
    sim_tensor tensors[SIM_TENSORS]; /* outputs, inputs, and tensors of scales */
    int64_t ints[SIM_INTS];          /* arguments, in an order of each kernel's own */
    double floats[SIM_FLOATS];
} sim_command;

/* What a command is told to do wrong. */
enum sim_fault { SIM_SOUND, SIM_FAIL, SIM_HANG, SIM_DIE, SIM_WRONG, SIM_SLOW };

/* The window: whose turn it is. A copy moves chunk by chunk, each handed over once. */
enum { SIM_WINDOW_IDLE, SIM_WINDOW_WANTED, SIM_WINDOW_FULL };

typedef struct {
    _Atomic uint32_t given, done; /* commands; they wrap around */
    _Atomic uint32_t window;      /* SIM_WINDOW_... */
    _Atomic uint32_t window_bytes;
    _Atomic uint32_t failed; /* a dvp_status; the commands after it are passed over */
    char message[256];
    sim_command slots[SIM_SLOTS];
    _Alignas(SIM_ALIGN) unsigned char bytes[SIM_WINDOW];
} sim_stream;

typedef struct {
    _Atomic uint32_t bell; /* rung by the device whenever something is done or wanted */
    _Atomic uint32_t ready;
    uint64_t memory;  /* bytes that the device has */
    uint64_t heap_at; /* behind them, as the device counts: what both see */
    uint64_t probe;   /* an address of the host's, which the device tries to read */
    _Atomic uint32_t reads_host;
    _Atomic uint64_t bytes_in, bytes_out, bytes_between, launched, prepared, messages;
    _Atomic uint32_t busy, most_busy; /* kernels that run at once */
    sim_stream streams[SIM_STREAMS];
} sim_shared;

/* Sleep while *word is `value`, at most so long; wake all who do. */
void sim_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t nanoseconds);
void sim_wake(_Atomic uint32_t *word);

/* Where the heap begins in what is shared. */
enum { SIM_HEAD = (sizeof(sim_shared) + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE };

/* Whether a counter that wraps around has come to a place. */
static inline bool sim_reached(uint32_t count, uint32_t place)
{
    return (int32_t)(count - place) >= 0;
}

/* ---- the kernels, by number; both sides know their names ---- */

/* clang-format off */
#define SIM_KERNELS(X) \
    X(unary) X(binary) X(compare) X(where) X(copy) X(reduce) X(matmul) X(softmax) \
    X(layer_norm) X(embedding) X(convolution) X(max_pool) X(avg_pool) X(cat) X(index_copy) \
    X(slice_scatter) X(gather) X(fill) X(split) X(convert) X(quantized_matmul)
/* clang-format on */

enum {
#define X(name) SIM_##name,
    SIM_KERNELS(X)
#undef X
        SIM_KERNEL_COUNT
};

enum sim_unary {
    SIM_RELU,
    SIM_NEG,
    SIM_EXP,
    SIM_LOG,
    SIM_TANH,
    SIM_SIGMOID,
    SIM_SQRT,
    SIM_RSQRT,
    SIM_ABS,
    SIM_ERF,
    SIM_GELU,
    SIM_SILU,
    SIM_RECIPROCAL,
    SIM_SIN,
    SIM_COS
};
enum sim_binary { SIM_ADD, SIM_SUB, SIM_MUL, SIM_DIV, SIM_POW, SIM_MAX, SIM_MIN };
enum sim_compare { SIM_EQ, SIM_NE, SIM_LT, SIM_LE, SIM_GT, SIM_GE };
enum sim_reduce { SIM_SUM, SIM_MEAN, SIM_AMAX };

#endif
