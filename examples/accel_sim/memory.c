/* Device memory, given out by the driver: the first gap that is large enough, 64-byte aligned.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define HANDLE_TAG  0x51D0000000000000u /* no address of a user's process looks like this */
#define DEVICE_BITS 40                  /* where the device's number stands in a handle */

static void *handle_of(const dvp_device *device, uint32_t index)
{
    return (void *)(uintptr_t)(HANDLE_TAG | (uint64_t)device->index << DEVICE_BITS |
                               (index + 1u));
}

/* The block of a handle, NULL where it is none of this device. The lock is held. */
static sim_block *block_of(const dvp_device *device, const void *memory)
{
    uintptr_t number = (uintptr_t)memory;
    if ((number & 0xFFFF000000000000u) != HANDLE_TAG ||
        (number >> DEVICE_BITS & 0xFF) != (uintptr_t)device->index)
        return NULL;
    uint64_t index = (number & 0xFFFFFFFFu) - 1;
    bool there = index < device->block_count && device->blocks[index].bytes > 0;
    return there ? &device->blocks[index] : NULL;
}

bool sim_place(dvp_device *device, const void *memory, uint64_t offset, uint64_t *address,
               uint64_t *room, dvp_error *error)
{
    pthread_mutex_lock(&device->lock);
    const sim_block *block = block_of(device, memory);
    bool fits = block != NULL && offset <= block->bytes;
    if (fits) {
        *address = block->address + offset;
        *room = block->bytes - offset;
    }
    pthread_mutex_unlock(&device->lock);
    if (block == NULL)
        sim_fail(error, DVP_INVALID, "%p is not memory of this device", memory);
    else if (!fits)
        sim_fail(error, DVP_INVALID, "byte %llu is beyond its buffer",
                 (unsigned long long)offset);
    return fits;
}

/* The lowest place for so many bytes; UINT64_MAX: there is none. */
static uint64_t find_gap(const dvp_device *device, uint64_t bytes)
{
    uint64_t place = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < device->block_count; i++) {
            const sim_block *b = &device->blocks[i];
            if (b->bytes > 0 && place < b->address + b->bytes && b->address < place + bytes) {
                place = (b->address + b->bytes + SIM_ALIGN - 1) / SIM_ALIGN * SIM_ALIGN;
                moved = true;
            }
        }
    }
    uint64_t all = device->shared->memory;
    return bytes <= all && place <= all - bytes ? place : UINT64_MAX;
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
    grown[index] = (sim_block){0, 0};
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
    uint64_t place =
        device->limit < device->used || bytes > left ? UINT64_MAX : find_gap(device, bytes);
    uint32_t index = place == UINT64_MAX ? UINT32_MAX : free_index(device);
    if (index != UINT32_MAX) {
        device->blocks[index] = (sim_block){place, bytes};
        device->used += (int64_t)bytes;
        *memory = handle_of(device, index);
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
        device->used -= (int64_t)block->bytes;
        *block = (sim_block){0, 0};
    }
    pthread_mutex_unlock(&device->lock);
}

/* ---- copies ---- */

static bool place_range(dvp_device *device, const void *memory, uint64_t offset, uint64_t bytes,
                        uint64_t *address, dvp_error *error)
{
    uint64_t room;
    if (!sim_place(device, memory, offset, address, &room, error))
        return false;
    if (bytes > room) {
        sim_fail(error, DVP_INVALID, "%llu bytes where a buffer has %llu",
                 (unsigned long long)bytes, (unsigned long long)room);
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

dvp_status sim_buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                           dvp_error *error)
{
    static const int wheres[] = {0, SIM_AT_copy_in, SIM_AT_copy_out, SIM_AT_copy_between};
    static const int32_t kinds[] = {0, SIM_COPY_IN, SIM_COPY_OUT, SIM_COPY};
    int32_t direction = copy->direction;
    if (direction < DVP_HOST_TO_DEVICE || direction > DVP_DEVICE_TO_DEVICE)
        return sim_fail(error, DVP_INVALID, "a copy in direction %d", direction);
    dvp_status status = sim_fault(wheres[direction], error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    sim_command command = {.kind = kinds[direction], .bytes = copy->bytes};
    if (direction != DVP_HOST_TO_DEVICE &&
        !place_range(device, copy->source, copy->source_offset, copy->bytes, &command.source,
                     error))
        return DVP_INVALID;
    if (direction != DVP_DEVICE_TO_HOST &&
        !place_range(device, copy->destination, copy->destination_offset, copy->bytes,
                     &command.destination, error))
        return DVP_INVALID;
    sim_pending *pending = NULL;
    if (direction != DVP_DEVICE_TO_DEVICE) {
        bool in = direction == DVP_HOST_TO_DEVICE;
        void *host = in ? (void *)(uintptr_t)copy->source : copy->destination;
        pending = host_side(host, copy->bytes, in);
        if (pending == NULL)
            return sim_fail(error, DVP_NO_MEMORY, "no memory for a copy");
    }
    command.fault = sim_command_fault(false);
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
