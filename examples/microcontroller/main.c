/* Runs the network on made-up features, and prints the class with the greatest score and the memory that was used. */
#include "arena.h"
#include "board.h"
#include "net.h"

#include <string.h>

struct guarded_arena guarded_arena;

#define GUARD 0x5a

int main(void)
{
    static int8_t features[490];
    static int32_t scores[12];
    const void *arguments[1];
    void *results[1];
    uint32_t state = 1;
    size_t i, best = 0, used = 0;
    for (i = 0; i < sizeof features; ++i) {
        state = state * 1664525u + 1013904223u;
        features[i] = (int8_t)(state >> 24);
    }
    memset(&guarded_arena, GUARD, sizeof guarded_arena);
    arguments[0] = features;
    results[0] = scores;
    net_run(arguments, results);

    for (i = 0; i < sizeof scores / sizeof scores[0]; ++i) {
        best = scores[i] > scores[best] ? i : best;
    }
    for (i = 0; i < sizeof guarded_arena.bytes; ++i) {
        used = guarded_arena.bytes[i] != GUARD ? i + 1 : used;
    }
    board_text("class ");
    board_number((long)best);
    board_text("\narena ");
    board_number((long)used);
    board_text(" of ");
    board_number(net_ARENA_BYTES);
    board_text(" bytes\nstack ");
    board_number((long)board_stack_used());
    board_text(" bytes\n");
    for (i = 0; i < sizeof guarded_arena.before; ++i) {
        if (guarded_arena.before[i] != GUARD || guarded_arena.after[i] != GUARD) {
            board_text("the program wrote beside its arena\n");
            return 1;
        }
    }
    return 0;
}
