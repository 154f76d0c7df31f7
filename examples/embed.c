/* Lays a program out without Rust: what an embedder does with the header that memplan writes.
 *
 *     memplan compile examples/attention.hlo.txt --target cpu --emit c-header=program.h --emit constants=program.bin
 *     cc -std=c99 -DPROGRAM=\"program.h\" -DPREFIX=JIT_ATTENTION -o embed examples/embed.c
 *     ./embed program.bin
 *
 * Gets every allocation, fills the constants, and says where parameters and results are.
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

int main(int argc, char **argv) {
    static memory memories[ALLOCATIONS];
    FILE *constants = argc > 1 ? fopen(argv[1], "rb") : NULL;
    uint64_t main_memory = 0;
    for (size_t i = 0; i < ALLOCATIONS; i++) {
        const memplan_allocation *allocation = &ALLOCATION_TABLE[i];
        memories[i] = get(allocation);
        if (memories[i].block == NULL) return fail("out of memory");
        if ((uintptr_t)memories[i].start % allocation->alignment != 0) return fail("not aligned");
        if (!fill(allocation, memories[i], constants)) return fail("a constant is not in the file");
        if (allocation->space == 0) main_memory += allocation->size;
    }
    if (main_memory != TOTAL_SIZE) return fail("the allocations are not the total");
    if (!check(PARAMETER_TABLE, PARAMETERS, memories)) return fail("a parameter is not in its allocation");
    if (!check(RESULT_TABLE, RESULTS, memories)) return fail("a result is not in its allocation");
    printf("%llu bytes in %u allocations\n", (unsigned long long)main_memory, (unsigned)ALLOCATIONS);
    for (size_t i = 0; i < ALLOCATIONS; i++) free(memories[i].block);
    if (constants != NULL) fclose(constants);
    return EXIT_SUCCESS;
}
