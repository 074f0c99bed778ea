/* A command's terminal: a pair of ends, the master's with the keeper, the other as the command's stdio. */
#ifndef HOLDFAST_TERMINAL_H
#define HOLDFAST_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct terminal_size {
  uint16_t cols;
  uint16_t rows;
};

/* Both ends, the master's without blocking. False with errno; ENOSPC where there are as many terminals as may be. */
bool terminal_open(struct terminal_size size, int *master, int *slave);
/* Whoever runs in the foreground learns of it by SIGWINCH. */
bool terminal_resize(int master, struct terminal_size size);
/* What a user would type to end the input that ends with `last` (-1 where there was none): its size, at most 2. */
size_t terminal_end_of_file(int master, int last, uint8_t typed[2]);
/* The signals that keys send, to the group in the foreground. False where there is none or `number` is another. */
bool terminal_signal(int master, int number);
/* In the child, the leader of a new session: makes it the session's terminal. */
void terminal_take(int slave);
/* In the child, while it still may: gives it to the user that it is for. */
void terminal_give(int slave, uint32_t uid);

#endif
