/* What a stream is given can be noted, and then carried out by one command; and streams of the
 * vendor's own library (accel_sim.h), which the plug-in takes as they are. */
#include "accel_sim.h"
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* ---- graphs ---- */

static void drop(dvp_graph *graph)
{
    if (graph == NULL)
        return;
    pthread_mutex_lock(&graph->device->lock);
    graph->device->graphs[graph->number] = NULL;
    pthread_mutex_unlock(&graph->device->lock);
    free(graph->commands);
    free(graph);
}

dvp_status sim_capture_begin(dvp_device *device, dvp_stream *stream, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_capture_begin, error);
    if (status != DVP_OK)
        return status;
    if (stream->capture != NULL)
        return sim_fail(error, DVP_INVALID, "the stream notes something already");
    uint32_t number = 1;
    dvp_graph *graph = calloc(1, sizeof *graph);
    pthread_mutex_lock(&device->lock);
    while (number <= SIM_GRAPHS && device->graphs[number] != NULL)
        number++;
    if (graph != NULL && number <= SIM_GRAPHS)
        device->graphs[number] = graph;
    pthread_mutex_unlock(&device->lock);
    if (graph == NULL || number > SIM_GRAPHS) {
        free(graph);
        return sim_fail(error, DVP_NO_MEMORY, "there are %d graphs", SIM_GRAPHS);
    }
    graph->device = device;
    graph->number = number;
    stream->capture = graph;
    return DVP_OK;
}

dvp_status sim_note(dvp_stream *stream, const sim_command *command, sim_pending *pending,
                    dvp_error *error)
{
    dvp_graph *graph = stream->capture;
    bool known = command->kind == SIM_KERNEL || command->kind == SIM_COPY;
    free(pending);
    if (known && graph->count == graph->room) {
        uint32_t room = 2 * graph->room + 8;
        sim_command *grown = realloc(graph->commands, room * sizeof *grown);
        known = grown != NULL;
        graph->commands = known ? grown : graph->commands;
        graph->room = known ? room : graph->room;
    }
    if (!known) {
        graph->broken = true;
        return sim_fail(error, DVP_UNSUPPORTED, "only kernels and copies here can be noted");
    }
    graph->commands[graph->count] = *command;
    graph->commands[graph->count].graph = graph->number;
    graph->commands[graph->count].place = graph->count;
    graph->count++;
    return DVP_OK;
}

dvp_status sim_capture_end(dvp_device *device, dvp_stream *stream, dvp_graph **graph,
                           dvp_error *error)
{
    (void)device;
    dvp_graph *made = stream->capture;
    stream->capture = NULL;
    dvp_status status = sim_fault(SIM_AT_capture_end, error);
    if (status == DVP_OK && (made == NULL || made->broken))
        status = sim_fail(error, DVP_UNSUPPORTED, "nothing that can be noted");
    if (status == DVP_OK)
        *graph = made;
    else
        drop(made);
    return status;
}

/* The device has it before it is first launched, and another stream waits for that. */
static dvp_status send(dvp_stream *stream, dvp_graph *graph, dvp_error *error)
{
    dvp_status status = DVP_OK;
    for (uint32_t i = 0; status == DVP_OK && !graph->sent && i < graph->count; i++)
        status = sim_submit(stream, &graph->commands[i], NULL, error);
    if (status != DVP_OK)
        return status;
    if (!graph->sent) {
        graph->sent = true;
        graph->stream = stream->number;
        graph->upto = atomic_load(&stream->wire->given);
        return DVP_OK;
    }
    const sim_stream *other = &stream->device->shared->streams[graph->stream];
    if (graph->stream == stream->number || sim_reached(atomic_load(&other->done), graph->upto))
        return DVP_OK;
    sim_command wait = {.kind = SIM_WAIT, .stream = graph->stream, .upto = graph->upto};
    return sim_submit(stream, &wait, NULL, error);
}

dvp_status sim_graph_launch(dvp_device *device, dvp_stream *stream, dvp_graph *graph,
                            dvp_error *error)
{
    (void)device;
    dvp_status status = sim_fault(SIM_AT_graph_launch, error);
    if (status == DVP_OK)
        status = send(stream, graph, error);
    sim_command replay = {.kind = SIM_REPLAY, .graph = graph->number};
    for (uint32_t i = 0; status == DVP_OK && i < graph->count; i++)
        if (graph->commands[i].kind == SIM_KERNEL && replay.fault == SIM_SOUND) {
            replay.fault = sim_command_fault(true);
            replay.place = i;
        }
    return status == DVP_OK ? sim_submit(stream, &replay, NULL, error) : status;
}

void sim_graph_free(dvp_device *device, dvp_graph *graph)
{
    (void)device;
    drop(graph);
}

void sim_free_graphs(dvp_device *device)
{
    for (uint32_t i = 1; i <= SIM_GRAPHS; i++)
        drop(device->graphs[i]);
}

/* ---- streams of the vendor's own ---- */

dvp_status sim_stream_import(dvp_device *device, void *native, dvp_stream **stream,
                             dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_stream_import, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    *stream = NULL;
    pthread_mutex_lock(&device->lock);
    const dvp_stream *known = device->streams;
    while (known != NULL && known != native)
        known = known->next;
    if (known != NULL)
        *stream = sim_stream_of(device, known->number);
    if (*stream != NULL)
        (*stream)->imported = true;
    pthread_mutex_unlock(&device->lock);
    if (known == NULL)
        return sim_fail(error, DVP_INVALID, "%p is no stream of device %d", native,
                        device->index);
    return *stream != NULL ? DVP_OK : sim_fail(error, DVP_NO_MEMORY, "no memory for a stream");
}

dvp_status sim_stream_native(dvp_device *device, dvp_stream *stream, void **native,
                             dvp_error *error)
{
    (void)device;
    *native = stream;
    return sim_fault(SIM_AT_stream_native, error);
}

void *accel_sim_stream_new(int device)
{
    dvp_error unread;
    dvp_stream *made = NULL;
    dvp_device *opened = sim_open_device(device);
    bool there = opened != NULL && sim_stream_create(opened, &made, &unread) == DVP_OK;
    return there ? made : NULL;
}

/* Nothing is left to free where its device was closed. */
void accel_sim_stream_free(void *stream)
{
    for (int32_t i = 0; sim_open_device(i) != NULL || i < 2; i++)
        for (dvp_stream *s = sim_open_device(i) != NULL ? sim_open_device(i)->streams : NULL;
             s != NULL; s = s->next)
            if (s == stream) {
                sim_stream_destroy(s->device, s);
                return;
            }
}

int accel_sim_stream_is_done(void *stream)
{
    const sim_stream *wire = ((dvp_stream *)stream)->wire;
    return sim_reached(atomic_load(&wire->done), atomic_load(&wire->given));
}

int accel_sim_stream_sync(void *stream)
{
    dvp_error unread;
    dvp_stream *own = stream;
    return sim_stream_sync(own->device, own, &unread) == DVP_OK ? 0 : -1;
}

int accel_sim_fill(void *stream, void *memory, uint64_t offset, int64_t count, double value)
{
    dvp_error unread;
    dvp_stream *own = stream;
    sim_command c = {.kind = SIM_KERNEL, .kernel = SIM_fill, .outputs = 1, .floats = {value}};
    sim_tensor *t = &c.tensors[0];
    *t = (sim_tensor){
        .rank = 1, .code = DVP_FLOAT, .bits = 32, .shape = {count}, .strides = {1}};
    if (!sim_place(own->device, memory, offset, &t->address, &t->room, &unread))
        return -1;
    return sim_submit(own, &c, NULL, &unread) == DVP_OK ? 0 : -1;
}
