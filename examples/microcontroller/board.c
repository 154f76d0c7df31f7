/* A Cortex-M board under QEMU: starts the program, talks to the host by semihosting, and measures the stack. */
#include "board.h"

#include <string.h>

extern uint32_t data_in_flash[], data_begin[], data_end[], bss_begin[], bss_end[], stack_end[];

void reset(void);

/* What unused stack is filled with. */
#define PAINT 0xa5a5a5a5u

static int semihosting(int operation, const void *parameter)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = parameter;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void board_text(const char *text)
{
    semihosting(0x04, text);
}

void board_number(long number)
{
    char text[24];
    size_t at = sizeof text - 1;
    unsigned long rest = number < 0 ? 0ul - (unsigned long)number : (unsigned long)number;
    text[at] = 0;
    do {
        text[--at] = (char)('0' + (int)(rest % 10));
        rest = rest / 10;
    } while (rest != 0);
    if (number < 0) {
        text[--at] = '-';
    }
    board_text(text + at);
}

void board_bytes(const void *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *byte = bytes;
    char text[65];
    size_t i = 0;
    while (i < n) {
        size_t at = 0;
        for (; i < n && at < sizeof text - 1; ++i) {
            text[at++] = digits[byte[i] >> 4];
            text[at++] = digits[byte[i] & 15];
        }
        text[at] = 0;
        board_text(text);
    }
    board_text("\n");
}

size_t board_stack_used(void)
{
    const uint32_t *word = bss_end;
    while (word < stack_end && *word == PAINT) {
        ++word;
    }
    return (size_t)((const char *)stack_end - (const char *)word);
}

static void leave(int status)
{
    /* ADP_Stopped_ApplicationExit, with a status */
    const uint32_t reason[2] = {0x20026u, (uint32_t)status};
    semihosting(0x20, reason);
    for (;;) {
    }
}

static void fault(void)
{
    board_text("fault\n");
    leave(1);
}

void reset(void)
{
    volatile uint32_t *coprocessors = (volatile uint32_t *)0xe000ed88u;
    volatile uint32_t *word;
    *coprocessors = *coprocessors | 0xf00000u;
    __asm__ volatile("dsb\n\tisb");
    memcpy(data_begin, data_in_flash, (size_t)((char *)data_end - (char *)data_begin));
    for (word = bss_begin; word < bss_end; ++word) {
        *word = 0;
    }
    /* up to what this function uses itself */
    for (word = bss_end; (const char *)word < (const char *)__builtin_frame_address(0) - 64; ++word) {
        *word = PAINT;
    }
    leave(main());
}

/* The stack, and what to do at the start and at faults. */
__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_end, (const void *)reset, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault, NULL,
    NULL, NULL, NULL, (const void *)fault, (const void *)fault, NULL, (const void *)fault, (const void *)fault,
};
