/* Device memory, given out by the driver: the first gap that is large enough, 64-byte aligned.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define HANDLE_TAG  0x51D0000000000000u /* no address of a user's process looks like this */
#define DEVICE_BITS 40                  /* where the device's number stands in a handle */
#define NUMBERED    (1ull << 39)        /* what is below is a number, else an address */
#define IMPORTED    (1ull << 38)

/* The address on the device; of memory of the host's, which has none, a number that never comes
 * again. Where handles are numbers they are those of the table's rows, which do. */
static uint64_t name_block(dvp_device *device, uint32_t index)
{
    const sim_block *block = &device->blocks[index];
    uint64_t tag = HANDLE_TAG | (uint64_t)device->index << DEVICE_BITS;
    if (block->kind == DVP_MEMORY_IMPORTED)
        return tag | NUMBERED | IMPORTED | ++device->imports;
    return device->numbered ? tag | NUMBERED | index : tag | block->address;
}

static void *keep_block(dvp_device *device, uint32_t index, sim_block block)
{
    device->blocks[index] = block;
    device->blocks[index].handle = name_block(device, index);
    return (void *)(uintptr_t)device->blocks[index].handle;
}

/* The block of a handle, NULL where it is none of this device. The lock is held. */
static sim_block *block_of(const dvp_device *device, const void *memory)
{
    for (uint32_t i = 0; i < device->block_count; i++)
        if (device->blocks[i].bytes > 0 && device->blocks[i].handle == (uintptr_t)memory)
            return &device->blocks[i];
    return NULL;
}

static bool find(dvp_device *device, const void *memory, uint64_t offset, sim_block *found,
                 dvp_error *error)
{
    pthread_mutex_lock(&device->lock);
    const sim_block *block = block_of(device, memory);
    bool fits = block != NULL && offset <= block->bytes;
    if (fits)
        *found = (sim_block){block->address + offset, block->bytes - offset, block->kind, 0};
    pthread_mutex_unlock(&device->lock);
    if (block == NULL)
        sim_fail(error, DVP_INVALID, "%p is not memory of this device", memory);
    else if (!fits)
        sim_fail(error, DVP_INVALID, "byte %llu is beyond its buffer",
                 (unsigned long long)offset);
    return fits;
}

bool sim_place(dvp_device *device, const void *memory, uint64_t offset, uint64_t *address,
               uint64_t *room, dvp_error *error)
{
    sim_block found;
    if (!find(device, memory, offset, &found, error))
        return false;
    if (found.kind != DVP_MEMORY_DEVICE && found.kind != DVP_MEMORY_UNIFIED) {
        sim_fail(error, DVP_INVALID, "kernels cannot use the host's memory");
        return false;
    }
    *address = found.address;
    *room = found.bytes;
    return true;
}

/* The lowest place for so many bytes between two; UINT64_MAX: there is none. */
static uint64_t find_gap(const dvp_device *device, uint64_t bytes, uint64_t first, uint64_t end)
{
    uint64_t place = first;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < device->block_count; i++) {
            const sim_block *b = &device->blocks[i];
            if (b->bytes > 0 && b->kind != DVP_MEMORY_IMPORTED &&
                place < b->address + b->bytes && b->address < place + bytes) {
                place = (b->address + b->bytes + SIM_ALIGN - 1) / SIM_ALIGN * SIM_ALIGN;
                moved = true;
            }
        }
    }
    return bytes <= end - first && place <= end - bytes ? place : UINT64_MAX;
}

static uint32_t free_index(dvp_device *device)
{
    uint32_t index = 0;
    while (index < device->block_count && device->blocks[index].bytes > 0)
        index++;
    if (index < device->block_count)
        return index;
    sim_block *grown = realloc(device->blocks, (index + 1u) * sizeof *grown);
    if (grown == NULL)
        return UINT32_MAX;
    grown[index] = (sim_block){0};
    device->blocks = grown;
    device->block_count = index + 1;
    return index;
}

dvp_status sim_buffer_alloc(dvp_device *device, uint64_t bytes, void **memory, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_buffer_alloc, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    bytes = bytes == 0 ? 1 : bytes;
    pthread_mutex_lock(&device->lock);
    uint64_t left = (uint64_t)(device->limit - device->used);
    uint64_t place = device->limit < device->used || bytes > left
                         ? UINT64_MAX
                         : find_gap(device, bytes, 0, device->shared->memory);
    uint32_t index = place == UINT64_MAX ? UINT32_MAX : free_index(device);
    if (index != UINT32_MAX) {
        *memory = keep_block(device, index, (sim_block){place, bytes, DVP_MEMORY_DEVICE, 0});
        device->used += (int64_t)bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (index == UINT32_MAX)
        return sim_fail(error, DVP_NO_MEMORY, "no room for %llu bytes: %lld of %lld are used",
                        (unsigned long long)bytes, (long long)device->used,
                        (long long)device->limit);
    return DVP_OK;
}

void sim_buffer_free(dvp_device *device, void *memory)
{
    pthread_mutex_lock(&device->lock);
    sim_block *block = block_of(device, memory);
    if (block != NULL) {
        *(block->kind == DVP_MEMORY_DEVICE ? &device->used : &device->heap_used) -=
            (int64_t)block->bytes;
        *block = (sim_block){0};
    }
    pthread_mutex_unlock(&device->lock);
}

/* ---- memory that both see, and the host's own ---- */

static unsigned char *heap_of(const dvp_device *device)
{
    return (unsigned char *)device->shared + SIM_HEAD;
}

static dvp_status add_block(dvp_device *device, sim_block block, void **memory,
                            dvp_error *error)
{
    uint32_t index = free_index(device);
    if (index == UINT32_MAX)
        return sim_fail(error, DVP_NO_MEMORY, "no memory for a block");
    *memory = keep_block(device, index, block);
    device->heap_used += (int64_t)block.bytes;
    return DVP_OK;
}

dvp_status sim_memory_alloc(dvp_device *device, uint32_t kind, uint64_t bytes, void **memory,
                            void **address, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_memory_alloc, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    if (kind != DVP_MEMORY_PINNED && kind != DVP_MEMORY_UNIFIED)
        return sim_fail(error, DVP_UNSUPPORTED, "there is no memory of kind %u", kind);
    uint64_t start = device->shared->heap_at;
    pthread_mutex_lock(&device->lock);
    uint64_t place = find_gap(device, bytes, start, start + SIM_HEAP);
    status = place == UINT64_MAX
                 ? sim_fail(error, DVP_NO_MEMORY, "no room for %llu bytes that both see",
                            (unsigned long long)bytes)
                 : add_block(device, (sim_block){place, bytes, kind, 0}, memory, error);
    if (status == DVP_OK)
        *address = memset(heap_of(device) + (place - start), 0, bytes);
    pthread_mutex_unlock(&device->lock);
    return status;
}

dvp_status sim_memory_import(dvp_device *device, void *address, uint64_t bytes, void **memory,
                             dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_memory_import, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    if (!atomic_load(&device->shared->reads_host))
        return sim_fail(error, DVP_UNSUPPORTED,
                        "this system lets no other process read the host's memory");
    pthread_mutex_lock(&device->lock);
    status = add_block(device, (sim_block){(uintptr_t)address, bytes, DVP_MEMORY_IMPORTED, 0},
                       memory, error);
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* ---- copies ---- */

static bool place_range(dvp_device *device, const void *memory, uint64_t offset, uint64_t bytes,
                        sim_block *found, dvp_error *error)
{
    if (!find(device, memory, offset, found, error))
        return false;
    if (bytes > found->bytes) {
        sim_fail(error, DVP_INVALID, "%llu bytes where a buffer has %llu",
                 (unsigned long long)bytes, (unsigned long long)found->bytes);
        return false;
    }
    return true;
}

static sim_pending *host_side(void *host, uint64_t bytes, bool in)
{
    sim_pending *pending = calloc(1, sizeof *pending);
    if (pending != NULL)
        *pending = (sim_pending){.host = host, .bytes = bytes, .in = in};
    return pending;
}

/* One side of a copy, which the host names by a handle or by an address. */
static bool place_side(dvp_device *device, const void *memory, uint64_t offset, uint64_t bytes,
                       bool is_host, sim_block *found, dvp_error *error)
{
    if (!is_host)
        return place_range(device, memory, offset, bytes, found, error);
    uintptr_t address = (uintptr_t)memory, heap = (uintptr_t)heap_of(device);
    bool shared =
        address >= heap && address - heap <= SIM_HEAP && bytes <= SIM_HEAP - (address - heap);
    *found = shared ? (sim_block){device->shared->heap_at + (address - heap), bytes,
                                  DVP_MEMORY_PINNED, 0}
                    : (sim_block){address, bytes, 0, 0};
    return true;
}

/* Who moves the bytes: the device by itself, or both by way of a window. */
static int32_t kind_of(const sim_block *to, const sim_block *from)
{
    if (from->kind == 0)
        return SIM_COPY_IN;
    if (to->kind == 0)
        return SIM_COPY_OUT;
    return from->kind == DVP_MEMORY_IMPORTED ? SIM_READ_HOST
           : to->kind == DVP_MEMORY_IMPORTED ? SIM_WRITE_HOST
                                             : SIM_COPY;
}

dvp_status sim_buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                           dvp_error *error)
{
    static const int wheres[] = {0, SIM_AT_copy_in, SIM_AT_copy_out, SIM_AT_copy_between};
    int32_t direction = copy->direction;
    if (direction < DVP_HOST_TO_DEVICE || direction > DVP_DEVICE_TO_DEVICE)
        return sim_fail(error, DVP_INVALID, "a copy in direction %d", direction);
    dvp_status status = sim_fault(wheres[direction], error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    sim_block to, from;
    if (!place_side(device, copy->source, copy->source_offset, copy->bytes,
                    direction == DVP_HOST_TO_DEVICE, &from, error) ||
        !place_side(device, copy->destination, copy->destination_offset, copy->bytes,
                    direction == DVP_DEVICE_TO_HOST, &to, error))
        return DVP_INVALID;
    if (from.kind == DVP_MEMORY_IMPORTED && to.kind == DVP_MEMORY_IMPORTED)
        return sim_fail(error, DVP_UNSUPPORTED, "both sides are the host's memory");
    sim_command command = {.kind = kind_of(&to, &from),
                           .destination = to.address,
                           .source = from.address,
                           .bytes = copy->bytes};
    sim_pending *pending = NULL;
    if (command.kind == SIM_COPY_IN || command.kind == SIM_COPY_OUT) {
        bool in = command.kind == SIM_COPY_IN;
        void *host = in ? (void *)(uintptr_t)copy->source : copy->destination;
        pending = host_side(host, copy->bytes, in);
        if (pending == NULL)
            return sim_fail(error, DVP_NO_MEMORY, "no memory for a copy");
    }
    return sim_submit(stream, &command, pending, error);
}

/* Between two processes that are both devices: by way of the drivers' windows. It is the
 * device's traffic, not the host's, and counted so by neither. */
dvp_status sim_buffer_copy_peer(dvp_device *device, dvp_stream *stream, dvp_device *from,
                                const dvp_copy *copy, dvp_error *error)
{
    unsigned char *between = malloc(copy->bytes > 0 ? copy->bytes : 1);
    if (between == NULL)
        return sim_fail(error, DVP_NO_MEMORY, "no memory for a copy between devices");
    dvp_stream *reading = NULL;
    dvp_status status = sim_stream_create(from, &reading, error);
    if (status == DVP_OK) {
        dvp_copy out = {.struct_size = sizeof out,
                        .direction = DVP_DEVICE_TO_HOST,
                        .destination = between,
                        .source = copy->source,
                        .source_offset = copy->source_offset,
                        .bytes = copy->bytes};
        status = sim_buffer_copy(from, reading, &out, error);
        if (status == DVP_OK)
            status = sim_stream_sync(from, reading, error);
        sim_stream_destroy(from, reading);
    }
    if (status == DVP_OK) {
        dvp_copy in = {.struct_size = sizeof in,
                       .direction = DVP_HOST_TO_DEVICE,
                       .destination = copy->destination,
                       .destination_offset = copy->destination_offset,
                       .source = between,
                       .bytes = copy->bytes};
        status = sim_buffer_copy(device, stream, &in, error);
        if (status == DVP_OK)
            status = sim_stream_sync(device, stream, error);
    }
    if (status == DVP_OK) { /* counted as what it is */
        atomic_fetch_sub(&from->shared->bytes_out, copy->bytes);
        atomic_fetch_sub(&device->shared->bytes_in, copy->bytes);
        atomic_fetch_add(&device->shared->bytes_between, copy->bytes);
    }
    free(between);
    return status;
}
