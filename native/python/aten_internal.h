/* aten_internal.h: what the files behind aten.h share. */
#ifndef DVT_ATEN_INTERNAL_H
#define DVT_ATEN_INTERNAL_H

#include "aten.h"

typedef struct opaque_tensor *tensor_handle; /* an owning reference to a tensor of libtorch's */
typedef void *list_handle;
typedef int32_t torch_status; /* 0: done */

/* What libtorch offers; NULL where it does not. */
typedef struct {
    torch_status (*dispatch)(const char *op, const char *overload, uint64_t *stack);
    torch_status (*dispatch_versioned)(const char *op, const char *overload, uint64_t *stack,
                                       uint64_t version);
    uint64_t (*version)(void);
    torch_status (*from_blob)(void *data, int64_t rank, const int64_t *sizes,
                              const int64_t *strides, int64_t offset, int32_t dtype,
                              int32_t device, int32_t index, tensor_handle *made);
    torch_status (*empty)(int64_t rank, const int64_t *sizes, const int64_t *strides,
                          int32_t dtype, int32_t device, int32_t index, tensor_handle *made);
    torch_status (*copy)(tensor_handle to, tensor_handle from, int32_t non_blocking);
    torch_status (*clone)(tensor_handle self, tensor_handle *made);
    torch_status (*again)(tensor_handle self, tensor_handle *made);
    torch_status (*drop)(tensor_handle self);
    torch_status (*is_defined)(tensor_handle self, bool *answer);
    torch_status (*data)(tensor_handle self, void **answer);
    torch_status (*rank)(tensor_handle self, int64_t *answer);
    torch_status (*sizes)(tensor_handle self, int64_t **answer);
    torch_status (*strides)(tensor_handle self, int64_t **answer);
    torch_status (*offset)(tensor_handle self, int64_t *answer);
    torch_status (*dtype)(tensor_handle self, int32_t *answer);
    bool (*grad_enabled)(void);
    void (*set_grad)(bool enabled);
    int32_t (*cpu)(void);
    torch_status (*list_new)(size_t room, list_handle *made);
    torch_status (*list_push)(list_handle list, uint64_t value);
    torch_status (*list_size)(list_handle list, size_t *answer);
    torch_status (*list_get)(list_handle list, size_t index, uint64_t *answer);
    torch_status (*list_drop)(list_handle list);
    torch_status (*cell_new)(uint64_t **made); /* 2.13 and later */
    void *(*operator_new)(size_t size); /* what frees an older version's cells fits this */
    torch_status (*mm)(tensor_handle out, tensor_handle a, tensor_handle b);
    torch_status (*bmm)(tensor_handle out, tensor_handle a, tensor_handle b);
    torch_status (*addmm)(tensor_handle out, tensor_handle self, tensor_handle a,
                          tensor_handle b, double beta, double alpha);
    torch_status (*baddbmm)(tensor_handle out, tensor_handle self, tensor_handle a,
                            tensor_handle b, double beta, double alpha);
    torch_status (*add)(tensor_handle a, tensor_handle b, double alpha, tensor_handle *made);
    torch_status (*subtract)(tensor_handle a, tensor_handle b, double alpha,
                             tensor_handle *made);
    torch_status (*convolution)(tensor_handle x, tensor_handle weight, tensor_handle *bias,
                                const int64_t *stride, int64_t strides, const int64_t *padding,
                                int64_t paddings, const int64_t *dilation, int64_t dilations,
                                int32_t transposed, const int64_t *extra, int64_t extras,
                                int64_t groups, tensor_handle *made);
    torch_status (*linear)(tensor_handle x, tensor_handle weight, tensor_handle *bias,
                           const char *then, const double **scalars, int64_t count,
                           const char **algorithm, tensor_handle *made);
    torch_status (*threads)(uint32_t *answer);
    int32_t device;
} torch_functions;

extern torch_functions torch;

/* The number of a dtype, layout or memory format, from the function of libtorch's that says it,
 * such as "dtype_float32"; -1 where there is none. */
int32_t aten_constant(const char *name);
/* A dtype's number; -1: none that can go this way. */
int32_t aten_dtype(dvt_dtype dtype);

/* ---- plans ---- */

typedef enum {
    ARG_NONE,   /* an optional argument that is not given */
    ARG_TENSOR, /* an input, by its number */
    ARG_NUMBER, /* an attribute, by its number */
    ARG_WORD,   /* a plain value as the 64 bits that stand for it */
    ARG_SOME,   /* an optional argument that is given: one item */
    ARG_LIST,
} arg_kind;

typedef struct arg {
    arg_kind kind;
    uint32_t count;
    uint64_t word;
    struct arg *items;
} arg;

/* What an operation keeps with its frame: a handle for each input, then for each output that
 * has memory, then one more for a function's own use, made again only where the memory has
 * moved. */
typedef struct kept_handles {
    bool usable; /* whether every dtype can go this way */
    bool floating;
    uint32_t count;
    struct {
        tensor_handle handle;
        void *data;
        int32_t dtype;
    } slots[];
} kept_handles;

typedef bool (*aten_direct)(const aten_plan *plan, const dvt_host_operation *o,
                            kept_handles *k);

struct aten_plan {
    char *op, *overload;
    aten_direct direct; /* NULL: through the dispatcher */
    bool dispatches;    /* whether the dispatcher could take it too */
    arg arguments;      /* a list */
    uint32_t results;
    bool as_list;
};

tensor_handle aten_slot(kept_handles *k, uint32_t slot, const dvt_tensor *t);
/* The handle of an input; NULL: there is none. */
tensor_handle aten_input(kept_handles *k, const dvt_host_operation *o, uint64_t input);
/* Takes a handle over as result `number`. False: not what was promised. */
bool aten_accept(const dvt_host_operation *o, kept_handles *k, uint32_t number,
                 tensor_handle handle);
/* A plain number among the arguments. */
double aten_real(const arg *a);
/* mm, bmm, addmm and baddbmm. */
bool aten_run_product(const aten_plan *plan, const dvt_host_operation *o, kept_handles *k);

#define ATEN_STACK 64 /* the most arguments or results of a call */

/* Sets a plan's function of its own by name; false where this libtorch has none. */
bool aten_find_direct(aten_plan *plan, const char *name);

#endif
