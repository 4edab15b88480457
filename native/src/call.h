/* call.h: what the files behind dvt_run share. Not installed. */
#ifndef DVT_CALL_H
#define DVT_CALL_H

#include "control.h"
#include "internal.h"

/* ---- allocate.c: the caller's memory, or the C library's ---- */
/* Takes over what a caller says of its allocator. */
dvt_status dvt_allocator_set(dvt_allocator *known, const dvt_allocator *given,
                             dvt_error *error);
/* Memory that starts at a multiple of DVT_ALIGN, or NULL. */
void *dvt_allocate(const dvt_allocator *from, uint64_t bytes);
void dvt_release(const dvt_allocator *from, void *memory, uint64_t bytes);
/* An output of this shape with memory for `bytes`, freed by its deleter; NULL: no memory. */
dvt_managed *dvt_new_output(const dvt_allocator *from, const dvt_tensor *like, uint64_t bytes);

/* ---- state.c ---- */
/* Gives an artifact's own state the contents that the file has, as far as that is not done. */
dvt_status dvt_own_state_fill(dvt_artifact *a, dvt_error *error);
void dvt_own_state_free(dvt_artifact *a);
/* Points a frame's buffers at a state's memory. */
void dvt_bind_state(const program *p, frame *f, const dvt_state *state);

/* ---- outputs.c ---- */
/* Checks the memory that the caller gives, and gives each output some. */
dvt_status dvt_make_outputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                            const dvt_tensor *results, dvt_managed **outputs, dvt_error *error);
/* Whether the caller's memory is filled by a copy in the end. */
bool dvt_outputs_wait(const program *p, const dvt_tensor *results, dvt_managed *const *outputs);
/* Takes over what hosts made and fills the caller's memory, after a run that succeeded. */
void dvt_finish_outputs(const program *p, frame *f, const dvt_tensor *results,
                        dvt_managed **outputs);
void dvt_drop_outputs(const program *p, dvt_managed **outputs);

/* ---- own.c ---- */
/* Whether an instruction runs nobody's code but ours. */
bool dvt_is_own(const instruction *in);
dvt_status dvt_run_own(const program *p, const frame *f, uint32_t index, dvt_error *error);
/* Keeps what an instruction took, of an artifact that is timed. */
void dvt_note_time(const dvt_artifact *a, uint32_t index, uint64_t start, uint64_t end);

/* ---- strands.c ---- */
/* Finds the stretches of a frame whose operands are bound. */
dvt_status dvt_strands_find(const program *p, frame *f, dvt_error *error);
/* Gives up those in which memory must be cleared before an instruction. */
void dvt_strands_keep(frame *f);
dvt_status dvt_strands_run(const dvt_artifact *a, const frame *f, const strand_stretch *s,
                           run_control *control, dvt_error *error);

/* ---- arena.c ---- */
/* Gives the temporaries of a device, or of the host (0), their places in one arena. */
dvt_status dvt_arena_plan(const dvt_artifact *a, frame *f, uint32_t device, dvt_error *error);

/* ---- run.c ---- */
/* The options as far as the caller has them; the rest is zero. */
dvt_status dvt_run_options_read(dvt_run_options *known, const dvt_run_options *given,
                                dvt_error *error);
/* Everything of the caller's but the data: counts, kinds, sizes; then a frame for them. */
dvt_status dvt_frame_for(dvt_artifact *a, const dvt_tensor *inputs, size_t input_count,
                         const dvt_stream *stream, frame **found, dvt_error *error);
/* Keeps a frame for the next call. */
void dvt_frame_give(dvt_artifact *a, frame *f);
/* A run that this control may stop, which may be NULL. */
dvt_status dvt_run_controlled(dvt_artifact *a, const dvt_run_options *known,
                              run_control *control, const dvt_tensor *inputs,
                              size_t input_count, dvt_managed **outputs, size_t output_count,
                              dvt_error *error);

#endif
