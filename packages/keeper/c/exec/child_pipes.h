/*
 * Connections between the keeper and a command: pipes or a terminal, and a pipe that reports why a command could not be
 * run.
 */
#ifndef HOLDFAST_CHILD_PIPES_H
#define HOLDFAST_CHILD_PIPES_H

#include <stdbool.h>

#include "exec/terminal.h"

/* The two ends of a pipe: the keeper's end, which is non-blocking, and the command's end. -1 if absent. */
struct child_pipe {
  int keeper;
  int command;
};

struct child_pipes {
  struct child_pipe input;
  struct child_pipe output;
  struct child_pipe error;
  struct child_pipe status;
};

/* Opens the pipes of a command. On failure returns false with errno, and leaves nothing open. */
bool child_pipes_open(struct child_pipes *pipes, bool with_stdin);
/*
 * Opens a terminal instead of pipes. The command's end of `output` is its whole stdio. The keeper's ends of
 * `output` and `input` are duplicates of one descriptor, so that each direction is watched and closed
 * separately.
 */
bool child_pipes_open_terminal(struct child_pipes *pipes, struct terminal_size size);
/*
 * Closes the descriptors that still belong to `pipes`. A descriptor that another owner has taken over must be -1
 * here.
 */
void child_pipes_close(struct child_pipes *pipes);

#endif
