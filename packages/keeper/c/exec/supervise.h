/*
 * Rows of runs: commands that are started again when they end, with nobody's help.
 *
 * Every run is an exec like any other. A row knows its last one, which can't be forgotten while another may follow.
 * All that a row waits for is lived time, and all that it has is memory: links, pauses and checkpoints mean nothing to it.
 */
#ifndef HOLDFAST_KEPT_H
#define HOLDFAST_KEPT_H

#include "exec.h"

struct keep_policy {
  /* Also after an exit with 0. */
  bool always;
  /* Restarts in a row. */
  uint32_t max;
  uint32_t backoff_ms;
};

/* Begins the first run. Its id is not known yet. */
struct outcome kept_start(struct server *server, const struct exec_order *order, const struct keep_policy *policy,
                          struct exec **exec);
/* Whether it is the last run of a row that is not over. */
bool kept_needs(const struct exec *exec);
/* Where it is the last run of a row, none follows. */
void kept_stop(const struct exec *exec);
/* The exec is about to be forgotten: drops the row that it was the last run of. */
void kept_forget(const struct exec *exec);
/* A count, and every row that there is. */
void kept_write(const struct server *server, struct writer *out);

/* Begins the runs that are due. */
void kept_begin(struct server *server);
/* Settles what follows the runs that have ended. */
void kept_follow(struct server *server);
void kept_end(void);

#endif
