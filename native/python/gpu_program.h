/* gpu_program.h: a GPU's program as gpu_read.c reads it and gpu.c runs it. */
#ifndef DVT_GPU_PROGRAM_H
#define DVT_GPU_PROGRAM_H

#include "gpu.h"

typedef int (*launch_function)(void *function, unsigned blocks, unsigned blocks_y,
                               unsigned blocks_z, unsigned threads, unsigned threads_y,
                               unsigned threads_z, unsigned shared, void *stream,
                               void **arguments, void **extra);

typedef enum {
    STEP_EMPTY,
    STEP_LAUNCH,
    STEP_CALL,
    STEP_PRODUCT,
    STEP_ATTENTION,
    STEP_FREE, /* an object of Python's */
    STEP_DROP, /* a handle of libtorch's */
} step_kind;

#define SCRATCH 2 /* pointers behind a kernel's own arguments that are null */

typedef struct {
    bool is_value; /* a tensor's address, by its place among the values; else a number */
    uint64_t word;
} launch_argument;

typedef struct {
    step_kind kind;
    Py_ssize_t place; /* of the value that is made or forgotten */
    PyObject *given;  /* what makes memory, or what is called; its arguments for the former */
    uint32_t count;   /* of the launch's arguments, or of the results of what is called */
    Py_ssize_t *results;
    void *function; /* of the launch */
    unsigned blocks, threads, shared;
    launch_argument *arguments;
    gpu_product *product;
    gpu_attention *attention;
} gpu_step;

/* How an input has to lie for the kernels to be right. */
typedef struct {
    Py_ssize_t place;
    dvt_dtype dtype;
    int32_t rank;
    int64_t *sizes; /* then as many strides */
} gpu_input;

/* A value in the memory that is made once for all of a run. */
typedef struct {
    Py_ssize_t place;
    uint64_t offset; /* in bytes */
} gpu_part;

/* The addresses of one run, and where in them each argument of each launch is. */
typedef struct {
    uint64_t *words; /* one for each value, then the launches' numbers, then a zero */
    void **arguments;
    void **owned;   /* as a gpu_run's */
    bool unaligned; /* some address is none that accesses can be wide at */
} gpu_frame;

typedef struct {
    PyObject_HEAD launch_function launch;
    int32_t device; /* -1: memory of the processor */
    Py_ssize_t values;
    PyObject *tensor, *empty, *align, *fail; /* PyTorch's type, and functions of Python's */
    Py_ssize_t arena;                        /* its place; -1: there is none */
    PyObject *arena_given;
    uint32_t part_count, input_count, step_count, output_count;
    gpu_part *parts;
    gpu_input *inputs;
    gpu_step *steps;
    Py_ssize_t *outputs;    /* NULL: all values are handed out */
    size_t words, pointers; /* of a frame */
    gpu_frame standing;     /* of the run that is alone */
    bool busy;              /* that frame is in use */
} GpuProgram;

/* Fills a program from its parts as Python gives them; 0, or -1 with an exception set. */
int gpu_program_read(GpuProgram *self, PyObject *args, PyObject *kwargs);
/* Frees what reading made. */
void gpu_program_clear(GpuProgram *self);
/* A frame for one run at a time; false: there is no memory. */
bool gpu_frame_make(const GpuProgram *self, gpu_frame *frame);
void gpu_frame_free(gpu_frame *frame);

#endif
