/* Starts commands: the fork, and the steps in the forked child until it executes the command's program. */
#ifndef HOLDFAST_CHILD_H
#define HOLDFAST_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "loop/frame.h"

/*
 * Why a command could not be run. The child sends this value over the status pipe as one byte. If the pipe ends
 * without a byte, the command runs.
 */
enum child_failure { CHILD_RUNS, CHILD_NOT_FOUND, CHILD_NOT_EXECUTABLE, CHILD_CWD, CHILD_USER };

struct child_order {
  const char *id;
  uint64_t serial;
  /* Fields of the request. Each is a validated list: a count and that many strings. */
  struct slice argv;
  struct slice env;
  struct slice cwd;
  struct slice user;
  /*
   * Whether the command has a terminal. If so, stdout_fd is the terminal, and it serves as stdin, stdout and stderr.
   */
  bool terminal;
  /* -1 means /dev/null. */
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int status_fd;
  /* The descriptor limit with which the keeper was started. Commands get the same limit. */
  struct rlimit files;
};

/* Returns the name of a failure as it is reported in an Exec. */
const char *child_failure_name(enum child_failure failure);

/*
 * Prepares the process state that children inherit: no new privileges, a bounding set without the Linux capabilities
 * that commands may not have, and an open descriptor of /dev/null. Must be called before any command runs. Returns
 * false with errno.
 */
bool child_init(void);
/* Forks a child that runs the command. Returns its pid, or -1 with errno. */
pid_t child_start(const struct child_order *order);

#endif
