/* Places of buffers in memory, and proofs that places are right.
 *
 *     cargo build --release -p memplan-c
 *     cc -I crates/c/include -o pack crates/c/examples/pack.c target/release/libmemplan_c.a -lpthread -ldl -lm
 *
 * Functions can be called from several threads at once. They keep nothing: what they are given belongs to the caller, and so does what they
 * write. They return a `memplan_status`, and say in a `memplan_error` what is wrong; where that is NULL they say nothing.
 */
#ifndef MEMPLAN_H
#define MEMPLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Statuses. Those below zero are errors: nothing was written but the error. */
enum {
    /* All items have places; or, of places that were checked, they are right. */
    MEMPLAN_OK = 0,
    /* Proved: the items do not fit the capacity. The offsets are the best known, above it. */
    MEMPLAN_INFEASIBLE = 1,
    /* The limit was reached before a packing within the capacity was found. The offsets are the best known, above it. */
    MEMPLAN_UNKNOWN = 2,
    /* A pointer is NULL that must not be, or not aligned, or an array is larger than memory. */
    MEMPLAN_BAD_POINTER = -1,
    /* The problem, or what is said of its instants, contradicts itself. */
    MEMPLAN_BAD_PROBLEM = -2,
    /* A place is wrong. */
    MEMPLAN_MISPLACED = -3,
    /* A mistake in memplan. */
    MEMPLAN_BUG = -4
};

/* No item, no time, no fixed offset. */
#define MEMPLAN_NONE UINT64_MAX

/* A buffer. */
typedef struct memplan_item {
    /* Bytes that it needs. One of no bytes is in nobody's way. */
    uint64_t size;
    /* The offset is a multiple of this: 1 or more, for `memplan_check_placement` a power of two. */
    uint64_t alignment;
    /* It is live at the times t with lower <= t < upper. Items that are live at the same time share no byte. */
    uint64_t lower;
    uint64_t upper;
} memplan_item;

/* What is to be packed. Fields that are zero ask for nothing. */
typedef struct memplan_problem {
    const memplan_item *items;
    size_t n_items;
    /* NULL, or the only offset that each item may have; MEMPLAN_NONE where any will do. */
    const uint64_t *fixed;
    /* NULL, or the first item of each item's group, itself where it is the first or alone. Items of a group have one offset,
     * and may share bytes. */
    const uint64_t *groups;
    /* The bytes there are; 0 where as few as possible are asked for. */
    uint64_t capacity;
} memplan_problem;

/* How hard to try. */
typedef struct memplan_options {
    /* Most decisions that each thread tries after the first heuristics, of about two microseconds each; 0 for the heuristics
     * alone, UINT64_MAX for no limit. Answers are the same on every machine. */
    uint64_t node_limit;
    /* Milliseconds after which the best packing so far is the answer, which then depends on the machine; 0 for no limit. */
    uint64_t time_limit_ms;
    /* Varies the random choices. */
    uint64_t seed;
    /* Threads to use. */
    uint32_t threads;
} memplan_options;

/* How good a packing is. */
typedef struct memplan_packing {
    /* One past the highest byte used. */
    uint64_t height;
    /* No packing is lower than this. */
    uint64_t lower_bound;
    /* Decisions that were tried. */
    uint64_t nodes;
    /* Whether the height is proved to be the least. */
    bool is_optimal;
} memplan_packing;

/* An instant reads or writes an item. */
typedef struct memplan_access {
    uint64_t time;
    uint64_t item;
} memplan_access;

/* An instant may write an item, its result, over another one that it reads: each byte is read before, and only for, the byte
 * that replaces it. */
typedef struct memplan_overwrite {
    uint64_t time;
    uint64_t operand;
    uint64_t result;
} memplan_overwrite;

/* What the instants of a program do. */
typedef struct memplan_program {
    /* They are the times from 0 to this, which is at most 2^32 - 1. */
    uint64_t n_instants;
    const memplan_access *reads;
    size_t n_reads;
    const memplan_access *writes;
    size_t n_writes;
    const memplan_overwrite *overwrites;
    size_t n_overwrites;
} memplan_program;

/* What is wrong. */
typedef struct memplan_error {
    /* The item that is to blame, or MEMPLAN_NONE. */
    uint64_t first;
    /* The item that it is in conflict with, or MEMPLAN_NONE. */
    uint64_t second;
    /* When, or MEMPLAN_NONE. */
    uint64_t time;
    /* All of that in words, ending with a zero; what is longer is cut. Empty where nothing is wrong. */
    char message[256];
} memplan_error;

/* The limits that NULL stands for: enough for a few seconds at most. */
memplan_options memplan_default_options(void);

/* Finds an offset for each item: `offsets` has room for `n_items`. `options`, `packing` and `error` may be NULL. */
int32_t memplan_pack(const memplan_problem *problem, const memplan_options *options, uint64_t *offsets,
                     memplan_packing *packing, memplan_error *error);

/* Proves that offsets are right for a program, whoever chose them: items are aligned, at fixed offsets, within the capacity
 * and with their groups, and no two that are live together share bytes, unless the one is written over the other. What the
 * program says is held against the items: each is live whenever it is read or written. `program` may be NULL where nothing is
 * known of instants. `peak`, which may be NULL, gets the most bytes in use at once. */
int32_t memplan_check_placement(const memplan_problem *problem, const memplan_program *program, const uint64_t *offsets,
                                uint64_t *peak, memplan_error *error);

#ifdef __cplusplus
}
#endif

#endif
