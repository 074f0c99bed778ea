#include "ends.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define NONE ((struct ends_pair){-1, -1})
#define NOTHING ((struct ends){NONE, NONE, NONE, NONE})

static void close_pair(struct ends_pair *pair) {
  if (pair->keeper >= 0) close(pair->keeper);
  if (pair->command >= 0) close(pair->command);
  *pair = NONE;
}

void ends_close(struct ends *ends) {
  close_pair(&ends->input);
  close_pair(&ends->output);
  close_pair(&ends->error);
  close_pair(&ends->status);
}

/* Only the keeper's end must not block: the command's own is as any program expects it. */
static bool open_pipe(struct ends_pair *pair, bool to_command) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) < 0) return false;
  pair->keeper = fds[to_command];
  pair->command = fds[!to_command];
  return fcntl(pair->keeper, F_SETFL, O_NONBLOCK) == 0;
}

static bool whole(struct ends *ends, bool opened) {
  if (opened) return true;
  int error = errno;
  ends_close(ends);
  errno = error;
  return false;
}

bool ends_open_pipes(struct ends *ends, bool with_stdin) {
  *ends = NOTHING;
  return whole(ends, open_pipe(&ends->output, false) && open_pipe(&ends->error, false) &&
                         open_pipe(&ends->status, false) && (!with_stdin || open_pipe(&ends->input, true)));
}

bool ends_open_terminal(struct ends *ends, struct terminal_size size) {
  *ends = NOTHING;
  return whole(ends, terminal_open(size, &ends->output.keeper, &ends->output.command) &&
                         (ends->input.keeper = fcntl(ends->output.keeper, F_DUPFD_CLOEXEC, 0)) >= 0 &&
                         open_pipe(&ends->status, false));
}
