/* Finding libtorch's C functions, in the libtorch_cpu that this process has loaded already:
 * nothing of PyTorch is needed to build this. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "aten_internal.h"
#include "dtypes.h"

#include <dlfcn.h>
#include <stdio.h>

torch_functions torch;

static struct {
    const char *name;
    void *place; /* of the function's address */
    bool needed;
} const FUNCTIONS[] = {
    {"aoti_torch_call_dispatcher", &torch.dispatch, true},
    {"torch_call_dispatcher", &torch.dispatch_versioned, false},
    {"aoti_torch_abi_version", &torch.version, false},
    {"aoti_torch_create_tensor_from_blob", &torch.from_blob, true},
    {"aoti_torch_empty_strided", &torch.empty, true},
    {"aoti_torch_copy_", &torch.copy, true},
    {"aoti_torch_clone", &torch.clone, true},
    {"aoti_torch_new_tensor_handle", &torch.again, true},
    {"aoti_torch_delete_tensor_object", &torch.drop, true},
    {"aoti_torch_is_defined", &torch.is_defined, true},
    {"aoti_torch_get_data_ptr", &torch.data, true},
    {"aoti_torch_get_dim", &torch.rank, true},
    {"aoti_torch_get_sizes", &torch.sizes, true},
    {"aoti_torch_get_strides", &torch.strides, true},
    {"aoti_torch_get_storage_offset", &torch.offset, true},
    {"aoti_torch_get_dtype", &torch.dtype, true},
    {"aoti_torch_grad_mode_is_enabled", &torch.grad_enabled, true},
    {"aoti_torch_grad_mode_set_enabled", &torch.set_grad, true},
    {"torch_get_num_threads", &torch.threads, false},
    {"aoti_torch_device_type_cpu", &torch.cpu, true},
    {"torch_new_list_reserve_size", &torch.list_new, false},
    {"torch_list_push_back", &torch.list_push, false},
    {"torch_list_size", &torch.list_size, false},
    {"torch_list_get_item", &torch.list_get, false},
    {"torch_delete_list", &torch.list_drop, false},
    {"torch_new_stable_ivalue", &torch.cell_new, false},
    {"_Znwm", &torch.operator_new, false},
    {"aoti_torch_cpu_mm_out", &torch.mm, false},
    {"aoti_torch_cpu_bmm_out", &torch.bmm, false},
    {"aoti_torch_cpu_addmm_out", &torch.addmm, false},
    {"aoti_torch_cpu_baddbmm_out", &torch.baddbmm, false},
    {"aoti_torch_cpu_add_Tensor", &torch.add, false},
    {"aoti_torch_aten_subtract_Tensor", &torch.subtract, false},
    {"aoti_torch_cpu_convolution", &torch.convolution, false},
    {"aoti_torch_cpu__linear_pointwise", &torch.linear, false},
};

static void *library;
static bool complete;

int32_t aten_constant(const char *name)
{
    char symbol[80];
    int32_t (*get)(void) = NULL;
    if (snprintf(symbol, sizeof symbol, "aoti_torch_%s", name) >= (int)sizeof symbol)
        return -1;
    void *address = dlsym(library, symbol);
    if (address == NULL) /* newer ones have no prefix */
        address = dlsym(library, symbol + sizeof "aoti_" - 1);
    memcpy(&get, &address, sizeof get);
    return get != NULL ? get() : -1;
}

static struct {
    uint8_t code, bits;
    const char *name;
    int32_t number;
} DTYPES[] = {
#define X(name, code, bits) {code, bits, "dtype_" #name, -1},
    REAL_TYPES(X)
#undef X
};

/* -1: none that can go this way. Complex tensors go through Python: their lazy conjugation
 * cannot be seen from here. */
int32_t aten_dtype(dvt_dtype dtype)
{
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
        if (DTYPES[i].code == dtype.code && DTYPES[i].bits == dtype.bits)
            return DTYPES[i].number;
    return -1;
}

static void find_functions(void)
{
    library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    complete = true;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *address = dlsym(library, FUNCTIONS[i].name);
        memcpy(FUNCTIONS[i].place, &address, sizeof address);
        complete = complete && (address != NULL || !FUNCTIONS[i].needed);
    }
    for (size_t i = 0; complete && i < sizeof DTYPES / sizeof *DTYPES; i++)
        DTYPES[i].number = aten_constant(DTYPES[i].name);
    if (complete)
        torch.device = torch.cpu();
}

bool aten_available(void)
{
    /* Guarded by the interpreter lock. Looked for again until found: torch may come later. */
    if (!complete)
        find_functions();
    return complete;
}

bool aten_grad_off(void)
{
    bool was_on = torch.grad_enabled();
    if (was_on)
        torch.set_grad(false);
    return was_on;
}

void aten_grad_on(bool was_on)
{
    if (was_on)
        torch.set_grad(true);
}

uint32_t aten_threads(void)
{
    uint32_t count = 0;
    return torch.threads != NULL && torch.threads(&count) == 0 ? count : 0;
}
