/*
 * Supervised commands: commands that the keeper restarts when they end. Every run is an ordinary exec. The last run
 * of a supervised command cannot be forgotten while another run may follow. The time in
 * pauses and standby does not count towards delays, and all state is in memory, so neither a lost link nor a pause nor a
 * checkpoint affects supervision.
 */
#ifndef HOLDFAST_EXEC_RESTART_H
#define HOLDFAST_EXEC_RESTART_H

#include "exec/exec.h"

struct restart_policy {
  /* Whether to restart the command even after exit code 0. */
  bool always;
  /* Maximum number of consecutive restarts. */
  uint32_t max;
  uint32_t backoff_ms;
};

/*
 * Starts the first run of a supervised command. The order contains the id of the run, which must not be the id of a
 * known exec.
 */
struct outcome supervise_start(struct server *server, const struct exec_order *order,
                               const struct restart_policy *policy, struct exec **exec);
/*
 * Returns whether the exec is the last run of a command whose supervision has not ended. Such an exec must not be
 * forgotten, because another run may follow.
 */
bool supervise_needs(const struct exec *exec);
/* Stops the supervision of the command whose last run is this exec, if there is such a command. No further
 * run follows. */
void supervise_stop(const struct exec *exec);
/* Drops the supervised command whose last run is this exec. Must be called before the exec is forgotten. */
void supervise_forget(const struct exec *exec);
/* Writes the number of supervised commands, and then each of them. */
void supervise_write(const struct server *server, struct writer *out);

/* Starts the runs that are due. */
void supervise_begin(struct server *server);
/* Decides for each supervised command whose run has ended whether another run follows. */
void supervise_follow(struct server *server);
void supervise_end(void);

#endif
