#ifndef MEMPLAN_TYPES
#define MEMPLAN_TYPES

/* Sizes, offsets and counts in the tables: 64 bits, or what is defined before, such as `uint32_t`, where all are less.
 * The headers assert that they are. */
#ifndef MEMPLAN_SIZE
#define MEMPLAN_SIZE uint64_t
#endif
typedef MEMPLAN_SIZE memplan_size;

/* What an allocation is for. */
enum memplan_kind { MEMPLAN_ARGUMENT, MEMPLAN_OUTPUT, MEMPLAN_CONSTANT, MEMPLAN_TEMP };

/* The number of no allocation, launch or address; the offset of what is not in the file of constants; a count that is
 * not known. */
#define MEMPLAN_NONE UINT32_MAX
#define MEMPLAN_NOT_IN_FILE ((memplan_size)-1)
#define MEMPLAN_UNKNOWN ((memplan_size)-1)

/* A region of one memory space, to be had before the first run. */
typedef struct memplan_allocation {
    const char *name;
    enum memplan_kind kind;
    uint32_t space;
    memplan_size size;
    memplan_size alignment;
    memplan_size file_offset; /* of constants: where `--emit constants=FILE` has the bytes */
} memplan_allocation;

/* A part of a parameter or of the result. */
typedef struct memplan_port {
    const char *name;
    const char *shape;
    uint32_t parameter; /* MEMPLAN_NONE for results */
    const char *index;  /* path into the parameter or the result */
    uint32_t allocation;
    memplan_size offset;
    memplan_size size;
    int donated; /* whether the program may write over it */
} memplan_port;

/* Bytes of an allocation; MEMPLAN_NONE for what takes no memory: constants in the code, arrays without elements. */
typedef struct memplan_address {
    uint32_t allocation;
    memplan_size offset;
    memplan_size size;
} memplan_address;

/* What a computation is run for. */
enum memplan_role { MEMPLAN_ENTRY, MEMPLAN_CONDITION, MEMPLAN_BODY, MEMPLAN_BRANCH, MEMPLAN_CALLEE };

/* Launches that run in order: those from `first` to before `end` that name this computation; the others in between are
 * of computations that they run. */
typedef struct memplan_computation {
    const char *name;
    enum memplan_role role;
    uint32_t called_by; /* the launch that runs it; MEMPLAN_NONE for the entry */
    uint32_t number;    /* which of its computations: of a conditional, which branch */
    uint32_t first;
    uint32_t end;
} memplan_computation;

/* What it takes to run a launch. */
enum memplan_launch_kind {
    MEMPLAN_KERNEL,      /* reads the operands, writes the results */
    MEMPLAN_START,       /* begins a transfer */
    MEMPLAN_DONE,        /* waits for one */
    MEMPLAN_WHILE,       /* runs its condition and its body by turns */
    MEMPLAN_CONDITIONAL, /* runs one of its branches */
    MEMPLAN_CALL,        /* runs a computation */
    MEMPLAN_TABLE        /* writes the addresses of a tuple's elements */
};

/* Something to do. Operands, results and scratch are places in the table of addresses. */
typedef struct memplan_launch {
    const char *name;
    const char *operation;
    const char *function; /* what a fusion computes, the target of a custom call; else empty */
    enum memplan_launch_kind kind;
    uint32_t computation; /* whose launch it is */
    uint32_t operands;    /* the first; as many as there are before the results */
    uint32_t results;     /* the first; as many as there are before the scratch */
    uint32_t scratch;     /* working memory of the kernel, in each memory where it needs some */
    uint32_t end;         /* one past the last of them */
    memplan_size trips;   /* how often a loop runs its body */
} memplan_launch;

/* Bytes on their way while launches run, or between memory spaces. */
typedef struct memplan_transfer {
    const char *name;
    const char *operation;
    uint32_t start; /* the launch that starts it */
    uint32_t done;  /* the launch that waits for it: `start` for a plain copy; MEMPLAN_NONE: not in this computation */
    uint32_t from;  /* memory spaces */
    uint32_t to;
    memplan_size bytes;
    memplan_size runs;     /* as far as trip counts are known */
    uint32_t sources;      /* the first, in the table of addresses */
    uint32_t destinations; /* the first */
    uint32_t end;          /* one past the last destination */
} memplan_transfer;

#if defined(__cplusplus)
#define MEMPLAN_ASSERT(condition, name) static_assert(condition, #name)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define MEMPLAN_ASSERT(condition, name) _Static_assert(condition, #name)
#else
#define MEMPLAN_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif

#endif
