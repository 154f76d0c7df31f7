/* Lays a program out without Rust: what an embedder does with the header that memplan writes.
 *
 *     memplan compile examples/attention.hlo.txt --target cpu --emit c-header=program.h --emit constants=program.bin
 *     cc -std=c99 -DPROGRAM=\"program.h\" -DPREFIX=JIT_ATTENTION -o embed examples/embed.c
 *     ./embed program.bin
 *
 * Gets every allocation, fills the constants, says where parameters and results are, and goes through the launches
 * as a runtime would, except that it says what each reads and writes instead of starting a kernel.
 */
#include PROGRAM

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define ALLOCATIONS JOIN(PREFIX, ALLOCATIONS)
#define ALLOCATION_TABLE JOIN(PREFIX, ALLOCATION_TABLE)
#define PARAMETERS JOIN(PREFIX, PARAMETERS)
#define PARAMETER_TABLE JOIN(PREFIX, PARAMETER_TABLE)
#define RESULTS JOIN(PREFIX, RESULTS)
#define RESULT_TABLE JOIN(PREFIX, RESULT_TABLE)
#define TOTAL_SIZE JOIN(PREFIX, TOTAL_SIZE)
#define ADDRESS_TABLE JOIN(PREFIX, ADDRESS_TABLE)
#define COMPUTATIONS JOIN(PREFIX, COMPUTATIONS)
#define COMPUTATION_TABLE JOIN(PREFIX, COMPUTATION_TABLE)
#define LAUNCHES JOIN(PREFIX, LAUNCHES)
#define LAUNCH_TABLE JOIN(PREFIX, LAUNCH_TABLE)
#define TRANSFERS JOIN(PREFIX, TRANSFERS)
#define TRANSFER_TABLE JOIN(PREFIX, TRANSFER_TABLE)

/* An allocation, at a multiple of its alignment. */
typedef struct {
    unsigned char *block;
    unsigned char *start;
} memory;

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return EXIT_FAILURE;
}

static memory get(const memplan_allocation *allocation) {
    memory memory;
    size_t alignment = (size_t)allocation->alignment;
    memory.block = (unsigned char *)calloc((size_t)allocation->size + alignment, 1);
    memory.start = memory.block;
    if (memory.block != NULL) {
        memory.start += (alignment - (size_t)((uintptr_t)memory.block % alignment)) % alignment;
    }
    return memory;
}

/* The bytes of a constant from the file of constants. */
static int fill(const memplan_allocation *allocation, memory memory, FILE *file) {
    if (allocation->file_offset == MEMPLAN_NOT_IN_FILE) return 1;
    return file != NULL && fseek(file, (long)allocation->file_offset, SEEK_SET) == 0 &&
           fread(memory.start, 1, (size_t)allocation->size, file) == allocation->size;
}

/* Each port is inside its allocation, and aligned as the allocation is. */
static int check(const memplan_port *ports, size_t n, const memory *memories) {
    for (size_t i = 0; i < n; i++) {
        const memplan_port *port = &ports[i];
        if (port->allocation == MEMPLAN_NONE) continue;
        if (port->allocation >= ALLOCATIONS) return 0;
        const memplan_allocation *allocation = &ALLOCATION_TABLE[port->allocation];
        if (port->offset + port->size > allocation->size) return 0;
        /* The first and the last byte are there to be written. */
        unsigned char *bytes = memories[port->allocation].start + port->offset;
        memset(bytes, 0xAB, (size_t)port->size);
        printf("%s%s: %s, %llu bytes at %u + %llu%s\n", port->name, port->index, port->shape,
               (unsigned long long)port->size, (unsigned)port->allocation,
               (unsigned long long)port->offset, port->donated ? ", donated" : "");
    }
    return 1;
}

#if LAUNCHES > 0
/* Says where some arrays are; those that take no memory are left out. */
static void list(const char *what, uint32_t first, uint32_t end) {
    int any = 0;
    for (uint32_t i = first; i < end; i++) {
        const memplan_address *address = &ADDRESS_TABLE[i];
        if (address->allocation == MEMPLAN_NONE) continue;
        printf("%s %u+%llu:%llu", any ? "" : what, (unsigned)address->allocation,
               (unsigned long long)address->offset, (unsigned long long)address->size);
        any = 1;
    }
}

/* Says which transfer a launch starts, and which launch waits for it. */
static void list_transfer(uint32_t launch) {
#if TRANSFERS > 0
    for (size_t i = 0; i < TRANSFERS; i++) {
        const memplan_transfer *transfer = &TRANSFER_TABLE[i];
        if (transfer->start != launch || transfer->done == MEMPLAN_NONE) continue;
        printf(" from space %u to %u until %s", (unsigned)transfer->from, (unsigned)transfer->to,
               LAUNCH_TABLE[transfer->done].name);
    }
#else
    (void)launch;
#endif
}

/* Goes through a computation, once through the body of a loop and through every branch. */
static void run(uint32_t computation, int depth) {
    for (uint32_t i = COMPUTATION_TABLE[computation].first; i < COMPUTATION_TABLE[computation].end; i++) {
        const memplan_launch *launch = &LAUNCH_TABLE[i];
        if (launch->computation != computation) continue;
        printf("%*s%s %s", 2 * depth, "", launch->operation, launch->name);
        list(" reads", launch->operands, launch->results);
        list(" writes", launch->results, launch->scratch);
        list_transfer(i);
        printf("\n");
        if (launch->kind == MEMPLAN_WHILE || launch->kind == MEMPLAN_CONDITIONAL || launch->kind == MEMPLAN_CALL) {
            for (uint32_t called = 0; called < COMPUTATIONS; called++) {
                if (COMPUTATION_TABLE[called].called_by == i) run(called, depth + 1);
            }
        }
    }
}
#endif

int main(int argc, char **argv) {
    static memory memories[ALLOCATIONS];
    FILE *constants = argc > 1 ? fopen(argv[1], "rb") : NULL;
    uint64_t total = 0;
    for (size_t i = 0; i < ALLOCATIONS; i++) {
        const memplan_allocation *allocation = &ALLOCATION_TABLE[i];
        memories[i] = get(allocation);
        if (memories[i].block == NULL) return fail("out of memory");
        if ((uintptr_t)memories[i].start % allocation->alignment != 0) return fail("not aligned");
        if (!fill(allocation, memories[i], constants)) return fail("a constant is not in the file");
        /* Arenas of other memory spaces have their own figures. */
        if (allocation->kind != MEMPLAN_TEMP || allocation->space == 0) total += allocation->size;
    }
    if (total != TOTAL_SIZE) return fail("the allocations are not the total");
    if (!check(PARAMETER_TABLE, PARAMETERS, memories)) return fail("a parameter is not in its allocation");
    if (!check(RESULT_TABLE, RESULTS, memories)) return fail("a result is not in its allocation");
#if LAUNCHES > 0
    run(0, 0);
#endif
    printf("%llu bytes in %u allocations\n", (unsigned long long)total, (unsigned)ALLOCATIONS);
    for (size_t i = 0; i < ALLOCATIONS; i++) free(memories[i].block);
    if (constants != NULL) fclose(constants);
    return EXIT_SUCCESS;
}
