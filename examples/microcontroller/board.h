/* What a program needs of a board. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* Writes a text to the host. */
void board_text(const char *text);

/* Writes a number to the host. */
void board_number(long number);

/* Writes bytes to the host in hexadecimal, on a line. */
void board_bytes(const void *bytes, size_t n);

/* Bytes of the stack that have been used since the start. */
size_t board_stack_used(void);

/* The program, which the board starts. */
int main(void);

#endif
