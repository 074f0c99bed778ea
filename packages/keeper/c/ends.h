/* What lies between the keeper and a command: pipes or a terminal, and a pipe for what can't be run. */
#ifndef HOLDFAST_ENDS_H
#define HOLDFAST_ENDS_H

#include <stdbool.h>

#include "terminal.h"

/* The keeper's end, which never blocks, and the command's. -1 where there is none. */
struct ends_pair {
  int keeper;
  int command;
};

struct ends {
  struct ends_pair input;
  struct ends_pair output;
  struct ends_pair error;
  struct ends_pair status;
};

/* False with errno, and nothing open. */
bool ends_open_pipes(struct ends *ends, bool with_stdin);
/*
 * The command's end of `output` is all of its stdio. The keeper's ends of output and input are one and the same, opened
 * twice, so that each direction is watched and closed by itself.
 */
bool ends_open_terminal(struct ends *ends, struct terminal_size size);
/* Closes those that nobody took over, which is said by setting them to -1. */
void ends_close(struct ends *ends);

#endif
