/* check.h: what the C tests share. What does not hold is printed and counted, and `main`
 * returns whether that happened. */
#ifndef DVT_CHECK_H
#define DVT_CHECK_H

#include <stdio.h>
#include <stdlib.h>

static int failures;

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                    \
            failures++;                                                                        \
        }                                                                                      \
    } while (0)

/* Ends the process: what follows would make no sense, or a child has failed. */
#define REQUIRE(condition)                                                                     \
    do {                                                                                       \
        CHECK(condition);                                                                      \
        if (failures > 0)                                                                      \
            exit(1);                                                                           \
    } while (0)

/* In words, where the condition says little; one that is tried many times is told ten times. */
#define EXPECT(condition, what)                                                                \
    do {                                                                                       \
        if (!(condition) && failures++ < 10)                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, what);                          \
    } while (0)

#endif
