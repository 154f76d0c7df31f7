/* The arena of the network, between bytes that show whether anything is written beside it. */
#ifndef ARENA_H
#define ARENA_H

#include "net.h"

struct guarded_arena {
    uint8_t before[64];
    uint8_t bytes[net_ARENA_BYTES] __attribute__((aligned(64)));
    uint8_t after[64];
};

extern struct guarded_arena guarded_arena;

#define net_ARENA guarded_arena.bytes

#endif
