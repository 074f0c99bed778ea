/*
 * A command's terminal: a pseudo-terminal pair. The keeper holds the master; the slave is the command's
 * stdio.
 */
#ifndef HOLDFAST_TERMINAL_H
#define HOLDFAST_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct terminal_size {
  uint16_t cols;
  uint16_t rows;
};

/* Opens both ends; the master is non-blocking. Returns false with errno, which is ENOSPC if the limit of
 * terminals is reached. */
bool terminal_open(struct terminal_size size, int *master, int *slave);
/* Resizes the terminal. The kernel notifies the foreground process group with SIGWINCH. */
bool terminal_resize(int master, struct terminal_size size);
/*
 * Writes the characters that end the input into `typed`; `last` is the last byte of the input, or -1 if there was none.
 * Returns the number of characters, at most 2.
 */
size_t terminal_end_of_file(int master, int last, uint8_t typed[2]);
/*
 * Sends a signal to the foreground process group, but only a signal that a key can produce. Returns false for any
 * other signal, or if there is no foreground process group.
 */
bool terminal_signal(int master, int number);
/* Makes the terminal the controlling terminal of the calling child, which must be a session leader. */
void terminal_take(int slave);
/* Gives the terminal to the user of the command. Called in the child while it is still privileged. */
void terminal_give(int slave, uint32_t uid);

#endif
