/* The kernels a program calls: built-in ones, and those that the file brings as native code and
 * as kernel IR.
 *
 * The file's own code runs where the file is trusted, and is then taken at its word. Code that
 * was generated here from kernel IR runs in any case, but nobody vouches for what it was made
 * of: each of its functions belongs to a kernel of the section, by its number there, and runs
 * on operands that the kernel has accepted; what it may leave unwritten has been cleared (see
 * defined.c). */
#include "kernel_ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dvt_status (*run_function)(const dvt_call *call, dvt_error *error);

/* A kernel in native code, and the same kernel in the file's kernel IR, if it is there. */
struct own_kernel {
    dvt_kernel entry;
    const dvt_kernel *described;
};

static uint32_t word(const uint8_t *p, size_t index)
{
    uint32_t value;
    memcpy(&value, p + 4 * index, sizeof value);
    return value;
}

static bool is_interpreted(const dvt_kernel *kernel)
{
    return kernel->check == dvt_kernel_ir_check;
}

/* Code that may not or cannot run here is left alone; find_kernel says what that means. */
static dvt_status load_code(dvt_artifact *a, dvt_error *error)
{
    span code = a->file.sections[DVT_CODE];
    if (code.data == NULL)
        return DVT_OK;
    a->code_state = -1;
    if (!a->trusted) {
        a->code_refusal = DVT_CODE_UNTRUSTED;
        return DVT_OK;
    }
    dvt_status status = dvt_code_load(code, &a->code, error);
    if (status == DVT_OK)
        a->code_state = 1;
    else
        a->code_refusal = dvt_may_execute() ? DVT_CODE_UNFIT : DVT_CODE_FORBIDDEN;
    return status == DVT_ERROR_UNSUPPORTED ? DVT_OK : status;
}

static dvt_status no_code(const dvt_artifact *a, dvt_error *error)
{
    if (a->code_refusal == DVT_CODE_FORBIDDEN)
        return dvt_fail(
            error, DVT_ERROR_UNSUPPORTED,
            "the artifact needs native code, and this system does not let a process "
            "make memory executable (MDWE, SELinux): export it with kernel IR");
    if (a->code_refusal != DVT_CODE_UNTRUSTED)
        return dvt_fail(
            error, DVT_ERROR_UNSUPPORTED,
            "the artifact's native code cannot run on this machine, and no built-in "
            "kernel does the same");
    return dvt_fail(
        error, DVT_ERROR_UNTRUSTED,
        a->signature < 0
            ? "the artifact carries native code signed by a key that is not trusted: "
              "trust its key, or export it without native code"
            : "the artifact carries native code and no signature, so it will not be "
              "run: sign it, or export it without native code");
}

/* ---- native code ---- */

static const struct own_kernel *own_of(const dvt_call *call)
{
    return (const struct own_kernel *)(const void *)call->kernel;
}

/* Trusted code without kernel IR: there is nothing to check it by. */
static dvt_status accept_any(const dvt_call *call, dvt_error *error)
{
    (void)call;
    (void)error;
    return DVT_OK;
}

/* Native code trusts its operands; kernel IR says what they must be. */
static dvt_status check_described(const dvt_call *call, dvt_error *error)
{
    dvt_call same = *call;
    same.kernel = own_of(call)->described;
    return same.kernel->check(&same, error);
}

const dvt_kernel *dvt_kernel_described(const dvt_kernel *kernel)
{
    if (kernel->check == check_described)
        return ((const struct own_kernel *)(const void *)kernel)->described;
    return is_interpreted(kernel) ? kernel : NULL;
}

static run_function function_at(void *address)
{
    run_function run;
    memcpy(&run, &address, sizeof run);
    return run;
}

static const dvt_kernel *own_kernel(dvt_artifact *a, uint32_t index, void *address,
                                    uint32_t version, const dvt_kernel *described)
{
    struct own_kernel *own = &a->own_kernels[index];
    own->entry =
        (dvt_kernel){sizeof(dvt_kernel), version, "generated",
                     described != NULL ? check_described : accept_any, function_at(address)};
    own->described = described;
    return &own->entry;
}

/* ---- finding kernels ---- */

/* A generated kernel: trusted native code, else kernel IR; NULL where there is neither. */
static const dvt_kernel *generated(dvt_artifact *a, const char *symbol, size_t length,
                                   uint32_t version, uint32_t index)
{
    const dvt_kernel *described = dvt_kernels_find(a->kernel_set, symbol, length);
    void *address = a->code != NULL ? dvt_code_symbol(a->code, symbol, length) : NULL;
    if (address != NULL)
        return own_kernel(a, index, address, version, described);
    return described;
}

static dvt_status find_kernel(dvt_artifact *a, const uint8_t *record, uint32_t index,
                              dvt_error *error)
{
    span strings = a->file.sections[DVT_STRINGS];
    uint32_t name = word(record, 0), length = word(record, 1), version = word(record, 2);
    uint32_t origin = word(record, 3), symbol = word(record, 4),
             symbol_length = word(record, 5);
    if (name > strings.size || length > strings.size - name || symbol > strings.size ||
        symbol_length > strings.size - symbol || origin > 1)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "kernels section: a name out of range");
    const char *text = (const char *)strings.data + name;
    const dvt_kernel *found = origin == 1 ? generated(a, (const char *)strings.data + symbol,
                                                      symbol_length, version, index)
                                          : NULL;
    if (found == NULL && origin == 1 && a->code != NULL)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "the code has no function %.*s",
                        dvt_shown(symbol_length), (const char *)strings.data + symbol);
    if (found == NULL)
        found = dvt_find_kernel(text, length, version);
    if (found == NULL && origin == 1)
        return no_code(a, error);
    if (found == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "no kernel %.*s@%u in this build: upgrade dovetail or load the plug-in "
                        "that has it",
                        dvt_shown(length), text, version);
    a->program.kernels[index] = found;
    return DVT_OK;
}

/* Gives each instruction its kernel, and notes whether any is interpreted. */
static void hand_out_kernels(dvt_artifact *a)
{
    program *p = &a->program;
    for (uint32_t i = 0; i < p->kernel_count; i++)
        if (is_interpreted(p->kernels[i]))
            a->code_state = -2;
    for (uint32_t i = 0; i < p->instruction_count; i++)
        if (p->instructions[i].opcode == OP_KERNEL)
            p->instructions[i].kernel = p->kernels[p->instructions[i].index];
}

/* Where a kernel's result is its first operand, an input or state (flow.c), it is put: others
 * read their operands in any order, and would find what they have written. */
static dvt_status check_writes_back(const program *p, dvt_error *error)
{
    for (uint32_t i = 0; i < p->instruction_count; i++) {
        const instruction *in = &p->instructions[i];
        if (in->opcode != OP_KERNEL || in->output_count == 0 || dvt_is_put(in->kernel))
            continue;
        uint8_t kind = p->buffers[p->buffers[in->outputs[0]].owner].kind;
        if (kind == KIND_INPUT || kind == KIND_STATE)
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "instruction %u writes to an input or state by another kernel than "
                            "put@1",
                            i);
    }
    return DVT_OK;
}

dvt_status dvt_kernels_bind(dvt_artifact *a, dvt_error *error)
{
    program *p = &a->program;
    dvt_status status = load_code(a, error);
    a->own_kernels = calloc(p->kernel_count + 1u, sizeof *a->own_kernels);
    if (status == DVT_OK && a->own_kernels == NULL)
        status = dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    const uint8_t *records = a->file.sections[DVT_KERNELS].data;
    for (uint32_t i = 0; status == DVT_OK && i < p->kernel_count; i++)
        status = find_kernel(a, records + 8 + 24 * (size_t)i, i, error);
    if (status != DVT_OK)
        return status;
    hand_out_kernels(a);
    return check_writes_back(p, error);
}

span dvt_kernel_name(const dvt_artifact *a, uint32_t kernel)
{
    span strings = a->file.sections[DVT_STRINGS], records = a->file.sections[DVT_KERNELS];
    size_t at = 8 + 24 * (size_t)kernel;
    uint32_t name = 0, length = 0;
    if (records.data != NULL && at + 24 <= records.size) {
        name = word(records.data + at, 0);
        length = word(records.data + at, 1);
    }
    bool known = strings.data != NULL && name <= strings.size && length <= strings.size - name;
    return known ? (span){strings.data + name, length} : (span){(const uint8_t *)"", 0};
}

dvt_status dvt_use_code(dvt_artifact *a, const void *code, size_t size, dvt_error *error)
{
    program *p = &a->program;
    char symbol[16];
    if (a->inspect_only || a->made != NULL || a->frames != NULL)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "code for an artifact is given once, before the first run");
    dvt_status status = dvt_code_load((span){code, size}, &a->made, error);
    if (status != DVT_OK)
        return status;
    if (a->code_state == -2)
        a->code_state = 1;
    for (uint32_t i = 0; i < p->kernel_count; i++) {
        const dvt_kernel *described = p->kernels[i];
        if (!is_interpreted(described))
            continue;
        uint32_t number = ((const kernel_ir *)(const void *)described)->number;
        int length = snprintf(symbol, sizeof symbol, "k%u", number);
        void *address = dvt_code_symbol(a->made, symbol, (size_t)length);
        if (address != NULL)
            p->kernels[i] = own_kernel(a, i, address, described->version, described);
    }
    hand_out_kernels(a);
    return DVT_OK;
}

void dvt_generated_free(dvt_artifact *a)
{
    free(a->own_kernels);
    dvt_code_free(a->code);
    dvt_code_free(a->made);
}
