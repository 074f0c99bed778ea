/*
 * Streams: bytes between who dials and a TCP port of this network's loopback.
 *
 * A connection that begins with a DIAL is never a link. Once the port has answered, both sides of it speak in chunks (a
 * u32 size and as many bytes; the size 0 ends that direction), because a unix socket has only one way to end and TCP has
 * two: what ends without that chunk was cut, and a cut is a reset on the other side. A part is never taken for the whole.
 *
 * The one that sends faster than the other reads is not read from. What one side gave and the other has not taken is at
 * most a piece; an idle stream has no buffer at all.
 */
#ifndef HOLDFAST_STREAM_H
#define HOLDFAST_STREAM_H

#include "server.h"

struct outcome handle_dial(struct request *request);
/* Gives up what takes too long, and cuts what an older generation asked for. */
void streams_tick(struct server *server);
/* Frees what was closed in this turn. */
void streams_bury(void);
/* How many there are. */
uint32_t streams_open(void);
/* Cuts all. */
void streams_end(void);

#endif
