/*
 * Streams: bytes between a client that dials and a TCP port on the loopback interface of the sandbox.
 *
 * A connection that begins with a DIAL never becomes a link. Once the port has answered, both directions are sent in
 * chunks (a u32 size and that many bytes; a chunk of size 0 ends the direction), because a unix socket can only be
 * closed as a whole and TCP directions end separately. A direction that ends without a chunk of size 0 was cut. If the
 * client's direction was cut, the keeper resets the connection to the port. If the port's direction was cut, the keeper
 * closes the connection to the client without a chunk of size 0. Incomplete data is therefore never mistaken for
 * complete data.
 *
 * If a side sends faster than the other side reads, the keeper stops reading from it until the other side has caught
 * up. At most one read's data is buffered per direction; an idle stream has no buffer at all.
 */
#ifndef HOLDFAST_STREAM_H
#define HOLDFAST_STREAM_H

#include "loop/server.h"

struct outcome handle_dial(struct request *request);
/*
 * Enforces the deadlines of streams: refuses dials that have taken too long, and cuts refused streams whose client does
 * not read the refusal in time. Also cuts streams of older generations.
 */
void streams_tick(struct server *server);
/* Frees the streams that were closed in this turn of the loop. */
void streams_free_closed(void);
/* Returns the number of open streams. */
uint32_t streams_open(void);
/* Cuts all streams. */
void streams_end(void);

#endif
