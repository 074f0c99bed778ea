/*
 * Connections between the keeper and a command: pipes or a terminal, and a pipe that reports why a command could not be
 * run.
 */
#ifndef HOLDFAST_CHILD_PIPES_H
#define HOLDFAST_CHILD_PIPES_H

#include <stdbool.h>

#include "exec/terminal.h"

/*
 * The two ends of a pipe: the keeper's end, which is non-blocking, and the command's end. An end that is not open is
 * -1.
 */
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
 * Opens a terminal instead of pipes. The command gets its end of `output` as stdin, stdout and stderr. The keeper's
 * ends of `output` and `input` are duplicates of one descriptor, so that each direction is watched and closed
 * separately.
 */
bool child_pipes_open_terminal(struct child_pipes *pipes, struct terminal_size size);
/*
 * Closes all descriptors in `pipes`. If another owner has taken over a descriptor, its field must have been set to -1
 * before.
 */
void child_pipes_close(struct child_pipes *pipes);

#endif
