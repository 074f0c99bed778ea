/* The way from fork to the command's own code. */
#ifndef HOLDFAST_CHILD_H
#define HOLDFAST_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "frame.h"

/* Why a command could not be run; written to the status pipe as one byte. Nothing there means that it runs. */
enum child_failure { CHILD_RUNS, CHILD_NOT_FOUND, CHILD_NOT_EXECUTABLE, CHILD_CWD, CHILD_USER };

struct child_order {
  const char *id;
  uint64_t serial;
  pid_t keeper;
  /* The fields of the request, each a count and as many strings, checked before. */
  struct slice argv;
  struct slice env;
  struct slice cwd;
  struct slice user;
  /* All three of stdio are the terminal behind stdout_fd. */
  bool terminal;
  /* -1: /dev/null. */
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int status_fd;
  /* The limit on descriptors that the keeper itself was started with. */
  struct rlimit files;
};

/* What a failure is called in an Exec. */
const char *child_failure_name(enum child_failure failure);

/*
 * Settles in the keeper what its children only have to inherit: no new privileges, no capability to be gained that a
 * command may not have, /dev/null as it is before anything ran. False with errno.
 */
bool child_init(void);
/* In the forked child. */
_Noreturn void child_run(const struct child_order *order);

#endif
