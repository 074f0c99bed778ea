/*
 * Ends a sandbox whose server does not come back. While a link is up, the server enforces the sandbox's TTL and this
 * deadline has no effect. Without a server, nothing else would ever end the sandbox.
 */
#ifndef HOLDFAST_DEADLINE_H
#define HOLDFAST_DEADLINE_H

#include "loop/server.h"

/* Sets the deadline, in milliseconds from now; 0 removes it. A later request replaces an earlier one. */
struct outcome handle_deadline(struct request *request);
/* Stops the keeper if its deadline has passed and no link is up. Called once per turn. */
void deadline_check(struct server *server);

#endif
