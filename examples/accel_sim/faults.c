/* Faults on demand: the n-th call of a function fails, or a command is told to go wrong. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static const char *const NAMES[] = {
#define X(name) #name,
    SIM_FAULTS(X)
#undef X
};

/* How many calls are left before the one that fails; 0: none fails. */
static _Atomic int64_t left[SIM_FAULT_COUNT];
static _Atomic bool loses[SIM_FAULT_COUNT];

static _Atomic bool slow; /* every kernel takes a while */

bool sim_set_fault(const char *name, int64_t value)
{
    if (strcmp(name, "slow") == 0) {
        atomic_store(&slow, value != 0);
        return true;
    }
    if (strncmp(name, "fault.", 6) != 0)
        return false;
    for (int i = 0; i < SIM_FAULT_COUNT; i++)
        if (strcmp(name + 6, NAMES[i]) == 0) {
            atomic_store(&loses[i], value < 0);
            atomic_store(&left[i], value < 0 ? -value : value);
            return true;
        }
    return false;
}

/* Whether this call is the one. */
static bool is_due(int where)
{
    int64_t now = atomic_load(&left[where]);
    while (now > 0)
        if (atomic_compare_exchange_weak(&left[where], &now, now - 1))
            return now == 1;
    return false;
}

dvp_status sim_fault(int where, dvp_error *error)
{
    if (!is_due(where))
        return DVP_OK;
    if (atomic_load(&loses[where]))
        return sim_fail(error, DVP_DEVICE_LOST, "a loss was injected in %s", NAMES[where]);
    if (where == SIM_AT_buffer_alloc)
        return sim_fail(error, DVP_NO_MEMORY, "no room was injected in %s", NAMES[where]);
    return sim_fail(error, DVP_FAILED, "a fault was injected in %s", NAMES[where]);
}

int32_t sim_command_fault(bool is_kernel)
{
    static const struct {
        int where;
        int32_t fault;
        bool kernel;
    } all[] = {
        {SIM_AT_kernel_fails, SIM_FAIL, true}, {SIM_AT_kernel_hangs, SIM_HANG, true},
        {SIM_AT_kernel_dies, SIM_DIE, true},   {SIM_AT_kernel_lies, SIM_WRONG, true},
        {SIM_AT_kernel_slow, SIM_SLOW, true},  {SIM_AT_copy_fails, SIM_FAIL, false},
        {SIM_AT_copy_hangs, SIM_HANG, false},  {SIM_AT_copy_dies, SIM_DIE, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].kernel == is_kernel && is_due(all[i].where))
            return all[i].fault;
    return is_kernel && atomic_load(&slow) ? SIM_SLOW : SIM_SOUND;
}
