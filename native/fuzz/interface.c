/* What no file decides: calls of the interface with arguments that a program may get wrong, and
 * the part of the loader that belongs to another kind of processor. */
#include "fuzz.h"
#include "processor.h"

#include <string.h>

static dvt_status takes_all(const dvt_call *call, dvt_error *error)
{
    (void)call;
    (void)error;
    return DVT_OK;
}

static void try_kernels(void)
{
    static const dvt_kernel good = {sizeof good, 1, "the fuzzer's own", takes_all, takes_all};
    dvt_kernel bad = good;
    dvt_error error;
    bad.run = NULL;
    if (dvt_register_kernel(NULL, &error) != DVT_ERROR_ARGUMENT ||
        dvt_register_kernel(&bad, &error) != DVT_ERROR_ARGUMENT ||
        dvt_register_kernel(&good, &error) != DVT_OK ||
        dvt_register_kernel(&good, &error) != DVT_ERROR_ARGUMENT ||
        dvt_find_kernel(good.name, strlen(good.name), 1) != &good ||
        dvt_find_kernel(good.name, strlen(good.name), 2) != NULL)
        finding("the kernel table does not do as it says");
}

static void try_opening(void)
{
    static _Alignas(64) uint8_t bytes_of[256];
    dvt_artifact *a = NULL;
    dvt_error error;
    if (dvt_open("/nowhere/at/all", NULL, &a, &error) != DVT_ERROR_IO ||
        dvt_open("/", NULL, &a, &error) != DVT_ERROR_IO ||
        dvt_open_memory(bytes_of + 1, 200, NULL, &a, &error) != DVT_ERROR_ARGUMENT ||
        dvt_open_memory(bytes_of, 200, NULL, &a, NULL) != DVT_ERROR_MALFORMED)
        finding("opening what is no file does not fail as it should");
    dvt_close(NULL);
    if (dvt_close_plugin(NULL) != 0)
        finding("no plug-in has leaked");
}

void try_interface(void)
{
    for (dvt_status status = -2; status < 40; status++)
        if (dvt_status_text(status)[0] == 0)
            finding("a status without words");
    try_kernels();
    try_opening();
    for (size_t i = 0; i < plugin_count; i++)
        if (dvt_plugin_name(plugins[i])[0] == 0)
            finding("a plug-in without a name");
    dvt_own_threads();
    if (dvt_processor_number() == 0)
        fprintf(stderr, "native code is not loaded on this machine\n");
}

/* Relocations of AArch64, which change what lies at their place and nothing else. */
void try_relocation(void)
{
    uint8_t place[24];
    uint32_t types[] = {257 + below(60), below(400), (uint32_t)odd_number()};
    uint32_t type = types[below(3)];
    unsigned width = dvt_aarch64.width(type);
    uint64_t from = one_in(4) ? below(1 << 20) : below(1u << (one_in(4) ? 31 : 18)) * 4ull;
    int64_t to = one_in(4) ? (int64_t)odd_number() : (int64_t)below(1 << 28) - (1 << 27);
    memset(place, 0xc3, sizeof place);
    if (width > 0)
        dvt_aarch64.relocate(type, place + 8, from, to);
    for (size_t i = 0; i < sizeof place; i++)
        if ((i < 8 || i >= 8 + width) && place[i] != 0xc3)
            finding("a relocation reaches out of its place");
    if (dvt_aarch64.level() == 0)
        dvt_aarch64.stub(place, from);
}
