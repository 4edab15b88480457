/* What the loader of native code leaves to each kind of processor. Both kinds are part of every
 * build, so that one machine can test the other's; only the machine's own is used. */
#ifndef DVT_PROCESSOR_H
#define DVT_PROCESSOR_H

#include <stdbool.h>
#include <stdint.h>

#define STUB_SIZE 16

typedef struct {
    uint16_t machine; /* ELF's number of it */
    uint32_t family;  /* what its numbers in a code section have in common: see SPEC.md */
    const char *name;
    /* The best level that this machine runs; 0: none. */
    int (*level)(void);
    /* How many bytes a relocation changes; 0: of a kind that is not known. */
    unsigned (*width)(uint32_t type);
    /* Makes what lies at `place` and is loaded `from` bytes behind a page reach `to`, counted
     * from the same page; false where it cannot. */
    bool (*relocate)(uint32_t type, unsigned char *place, uint64_t from, int64_t to);
    /* A jump to a function that may lie anywhere, in STUB_SIZE bytes. */
    void (*stub)(unsigned char *place, uint64_t address);
} dvt_processor;

extern const dvt_processor dvt_x86_64, dvt_aarch64;

#if defined(__aarch64__)
#define PROCESSOR dvt_aarch64
#else
#define PROCESSOR dvt_x86_64 /* on machines of neither kind it is of no level */
#endif

/* The best level that this machine runs, or the lower one that the variable DOVETAIL_PROCESSOR
 * names, which is read once; 0: none. Loops compiled for several levels are chosen by it too.
 */
int dvt_processor_level(void);

#endif
