/* Places the buffers of a small network in one block of memory, and proves the places right.
 *
 *     cargo build --release -p memplan-c
 *     cc -std=c99 -I crates/c/include -o pack crates/c/examples/pack.c target/release/libmemplan_c.a -lpthread -ldl -lm
 *     ./pack
 *
 *     instant   reads        writes
 *     0         input        features
 *     1         features     activated       in place: one group
 *     2         activated    pooled
 *     3         pooled       result
 */
#include <memplan.h>

#include <inttypes.h>
#include <stdio.h>

enum { INPUT, FEATURES, ACTIVATED, POOLED, RESULT, N_ITEMS };

static const char *const names[N_ITEMS] = {"input", "features", "activated", "pooled", "result"};

static const memplan_item items[N_ITEMS] = {
    /* bytes, alignment, live from, live until */
    {3000, 64, 0, 1},
    {16384, 64, 0, 2},
    {16384, 64, 1, 3},
    {4096, 64, 2, 4},
    {40, 64, 3, 4},
};
static const uint64_t groups[N_ITEMS] = {INPUT, FEATURES, FEATURES, POOLED, RESULT};

static const memplan_access reads[] = {{0, INPUT}, {1, FEATURES}, {2, ACTIVATED}, {3, POOLED}};
static const memplan_access writes[] = {{0, FEATURES}, {1, ACTIVATED}, {2, POOLED}, {3, RESULT}};

int main(void) {
    memplan_problem problem = {0};
    memplan_program program = {0};
    memplan_packing packing;
    memplan_error error;
    uint64_t offsets[N_ITEMS], peak;
    int i;

    problem.items = items;
    problem.n_items = N_ITEMS;
    problem.groups = groups;
    if (memplan_pack(&problem, NULL, offsets, &packing, &error) != MEMPLAN_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    for (i = 0; i < N_ITEMS; i++) {
        printf("%-9s at %5" PRIu64 ", %5" PRIu64 " bytes\n", names[i], offsets[i], items[i].size);
    }
    printf("%" PRIu64 " bytes, %s\n", packing.height, packing.is_optimal ? "proved minimal" : "perhaps not minimal");

    program.n_instants = 4;
    program.reads = reads;
    program.n_reads = sizeof reads / sizeof reads[0];
    program.writes = writes;
    program.n_writes = sizeof writes / sizeof writes[0];
    if (memplan_check_placement(&problem, &program, offsets, &peak, &error) != MEMPLAN_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("proved right, %" PRIu64 " bytes in use at most\n", peak);

    /* What is wrong has a name. */
    offsets[POOLED] = offsets[ACTIVATED];
    if (memplan_check_placement(&problem, &program, offsets, NULL, &error) == MEMPLAN_MISPLACED) {
        printf("%s: %s and %s\n", error.message, names[error.first], names[error.second]);
    }
    problem.capacity = 16384;
    if (memplan_pack(&problem, NULL, offsets, NULL, &error) == MEMPLAN_INFEASIBLE) {
        printf("%s: %s\n", error.message, names[error.first]);
    }
    return 0;
}
