#include "exec/child_pipes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define NONE ((struct child_pipe){-1, -1})
#define NOTHING ((struct child_pipes){NONE, NONE, NONE, NONE})

static void close_pair(struct child_pipe *pair) {
  if (pair->keeper >= 0) close(pair->keeper);
  if (pair->command >= 0) close(pair->command);
  *pair = NONE;
}

void child_pipes_close(struct child_pipes *pipes) {
  close_pair(&pipes->input);
  close_pair(&pipes->output);
  close_pair(&pipes->error);
  close_pair(&pipes->status);
}

/* Opens a pipe. The keeper's end is non-blocking. The command's end is blocking, as programs expect it. */
static bool open_pipe(struct child_pipe *pair, bool to_command) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) < 0) return false;
  pair->keeper = fds[to_command];
  pair->command = fds[!to_command];
  return fcntl(pair->keeper, F_SETFL, O_NONBLOCK) == 0;
}

static bool whole(struct child_pipes *pipes, bool opened) {
  if (opened) return true;
  int error = errno;
  child_pipes_close(pipes);
  errno = error;
  return false;
}

bool child_pipes_open(struct child_pipes *pipes, bool with_stdin) {
  *pipes = NOTHING;
  return whole(pipes, open_pipe(&pipes->output, false) && open_pipe(&pipes->error, false) &&
                         open_pipe(&pipes->status, false) && (!with_stdin || open_pipe(&pipes->input, true)));
}

bool child_pipes_open_terminal(struct child_pipes *pipes, struct terminal_size size) {
  *pipes = NOTHING;
  return whole(pipes, terminal_open(size, &pipes->output.keeper, &pipes->output.command) &&
                         (pipes->input.keeper = fcntl(pipes->output.keeper, F_DUPFD_CLOEXEC, 0)) >= 0 &&
                         open_pipe(&pipes->status, false));
}
