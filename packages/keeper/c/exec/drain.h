/*
 * Reads and discards the output of background processes whose exec was forgotten. Closing the pipe instead would kill
 * a writer with SIGPIPE, and not reading it would block the writer once the pipe is full.
 */
#ifndef HOLDFAST_DRAIN_H
#define HOLDFAST_DRAIN_H

#include "loop/server.h"

/*
 * Takes over the descriptor of `output`, and from then on reads and discards its data. Afterwards `output` has no
 * descriptor. Does nothing if `output` is closed.
 */
void drain_take(struct source *output);
/* Closes the drain that was started first, to free its descriptor. Returns false if there is no drain. */
bool drain_close_oldest(void);
/* Frees closed drains. */
void drains_free_closed(void);
void drains_end(void);

#endif
