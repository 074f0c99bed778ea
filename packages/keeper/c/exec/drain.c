#include "exec/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct drain {
  struct source source;
  struct drain *next;
};

static struct {
  /*
   * The list of drains, oldest first. A drain reads and discards one output. A closed drain stays in the list until the
   * end of the loop's turn.
   */
  struct drain *first;
  struct drain **last;
  uint32_t open;
  bool any_closed;
} drains = {.last = &drains.first};

static void drain_close(struct drain *drain) {
  source_close(&drain->source);
  drains.open--;
  drains.any_closed = true;
}

/*
 * Reads and discards output. A read error is treated as the end of the output, because a read from a terminal fails
 * with EIO once the terminal's other end is closed.
 */
static void drain_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  uint8_t discarded[DRAIN_BUFFER];
  for (int i = 0; i < DRAIN_TURN_READS; i++) {
    ssize_t size = read(source->fd, discarded, sizeof discarded);
    if (size > 0 || (size < 0 && errno == EINTR)) continue;
    if (size == 0 || errno != EAGAIN) drain_close((struct drain *)source);
    return;
  }
}

void drain_take(struct source *output) {
  if (output->fd < 0) return;
  if (drains.open >= DRAINS_MAX) drain_close_oldest();
  struct drain *drain = malloc(sizeof *drain);
  if (!drain) {
    source_close(output);
    return;
  }
  *drain = (struct drain){.source = {.fd = -1, .ready = drain_ready}};
  source_move(output, &drain->source);
  *drains.last = drain;
  drains.last = &drain->next;
  drains.open++;
  if (drain->source.fd < 0) drain_close(drain);
}

bool drain_close_oldest(void) {
  for (struct drain *drain = drains.first; drain; drain = drain->next) {
    if (drain->source.fd < 0) continue;
    drain_close(drain);
    return true;
  }
  return false;
}

void drains_free_closed(void) {
  if (!drains.any_closed) return;
  drains.any_closed = false;
  struct drain **at = &drains.first;
  while (*at) {
    struct drain *drain = *at;
    if (drain->source.fd >= 0) {
      at = &drain->next;
      continue;
    }
    *at = drain->next;
    free(drain);
  }
  drains.last = at;
}

void drains_end(void) {
  while (drain_close_oldest()) continue;
  drains_free_closed();
}
