/* The requests for execs. Those that wait for output or for room in a stdin buffer are answered later. */
#ifndef HOLDFAST_EXECS_H
#define HOLDFAST_EXECS_H

#include "loop/server.h"

extern const struct route exec_routes[];

/*
 * Answers each waiting request once its output has arrived, its stdin buffer has room, or its deadline has passed.
 * Called once per turn of the loop, after execs_tick.
 */
void exec_waiters_tick(struct server *server);
/* Detaches the waiting requests of a closed link, so that they are dropped without an answer. */
void exec_waiters_link_gone(struct link *link);

#endif
