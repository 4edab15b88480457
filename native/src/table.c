/* The kernel table: built-in kernels, and those that plug-ins register. */
#include "internal.h"

#include <string.h>

#define MAX_REGISTERED 4096

static const dvt_kernel *registered[MAX_REGISTERED];
static size_t registered_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void dvt_table_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void dvt_table_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

const dvt_kernel *dvt_builtin_kernel(size_t index)
{
    const struct {
        const dvt_kernel *kernels;
        size_t count;
    } groups[] = {
        {dvt_elementwise_kernels, dvt_elementwise_count},
        {dvt_product_kernels, dvt_product_count},
        {dvt_row_kernels, dvt_row_count},
        {dvt_move_kernels, dvt_move_count},
        {dvt_scatter_kernels, dvt_scatter_count},
        {dvt_put_kernels, dvt_put_count},
        {dvt_sort_kernels, dvt_sort_count},
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (index < groups[i].count)
            return &groups[i].kernels[index];
        index -= groups[i].count;
    }
    return NULL;
}

static bool serves(const dvt_kernel *kernel, const char *name, size_t length, uint32_t version)
{
    return strlen(kernel->name) == length && memcmp(kernel->name, name, length) == 0 &&
           kernel->version >= version;
}

const dvt_kernel *dvt_find_kernel(const char *name, size_t length, uint32_t version)
{
    const dvt_kernel *found = NULL;
    for (size_t i = 0; (found = dvt_builtin_kernel(i)) != NULL; i++)
        if (serves(found, name, length, version))
            return found;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < registered_count && found == NULL; i++)
        if (serves(registered[i], name, length, version))
            found = registered[i];
    pthread_mutex_unlock(&lock);
    return found;
}

dvt_status dvt_register_kernel(const dvt_kernel *kernel, dvt_error *error)
{
    if (kernel == NULL || kernel->struct_size < sizeof *kernel || kernel->name == NULL ||
        kernel->check == NULL || kernel->run == NULL)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "a kernel needs a name, check and run");
    const dvt_kernel *held = dvt_find_kernel(kernel->name, strlen(kernel->name), 0);
    if (held != NULL && held->version == kernel->version)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "there is a kernel %.200s@%u already",
                        kernel->name, kernel->version);
    pthread_mutex_lock(&lock);
    bool room = registered_count < MAX_REGISTERED;
    if (room)
        registered[registered_count++] = kernel;
    pthread_mutex_unlock(&lock);
    return room ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "the kernel table is full");
}
