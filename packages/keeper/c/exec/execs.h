/* The requests for execs. Some of them wait, for output or for room in a stdin buffer, and are answered later. */
#ifndef HOLDFAST_EXECS_H
#define HOLDFAST_EXECS_H

#include "loop/server.h"

extern const struct route exec_routes[];

/* Answers the waiting requests whose output, room or deadline has come. Called once per turn, after the execs were
 * advanced. */
void exec_waiters_tick(struct server *server);
/* Detaches the waiting requests of a closed link, so that they are dropped without an answer. */
void exec_waiters_link_gone(struct link *link);

#endif
