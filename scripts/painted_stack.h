/* How much of a stack a function touches: it runs in a thread of its own, on a stack that was painted. Include it first. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 64 << 20 };
static unsigned char stack[STACK] __attribute__((aligned(4096)));

static void *nothing(void *unused) { return unused; }

static size_t touched_by(void *(*body)(void *))
{
    pthread_t thread;
    pthread_attr_t attributes;
    size_t i = 0;
    memset(stack, 0x5a, sizeof stack);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, sizeof stack) || pthread_create(&thread, &attributes, body, NULL)) {
        exit(9);
    }
    pthread_join(thread, NULL);
    while (i < sizeof stack && stack[i] == 0x5a) {
        ++i;
    }
    return sizeof stack - i;
}

/* Without what a thread needs by itself. */
static size_t stack_bytes(void *(*body)(void *))
{
    size_t of_thread = touched_by(nothing);
    return touched_by(body) - of_thread;
}
