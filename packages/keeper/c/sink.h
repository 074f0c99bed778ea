/*
 * Output that nobody wants any more: of background children whose exec was forgotten. It is read and thrown away up to
 * its end, because who writes where nobody reads is killed for it (SIGPIPE), or stops at a full pipe.
 */
#ifndef HOLDFAST_SINK_H
#define HOLDFAST_SINK_H

#include "server.h"

/* Takes an open source over, which is closed then as far as its owner is concerned. */
void sink_take(struct source *output);
/* Closes the oldest one, for what needs its descriptor. False where there is none. */
bool sink_close_oldest(void);
/* Frees what was closed. */
void sinks_bury(void);
void sinks_end(void);

#endif
