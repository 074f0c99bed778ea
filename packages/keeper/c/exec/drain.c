#include "sink.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct sink {
  struct source source;
  struct sink *next;
};

static struct {
  /* Oldest first; closed ones stay until the turn is over. */
  struct sink *first;
  struct sink **last;
  uint32_t open;
  bool any_closed;
} sinks = {.last = &sinks.first};

static void sink_close(struct sink *sink) {
  source_close(&sink->source);
  sinks.open--;
  sinks.any_closed = true;
}

/* A terminal ends with EIO. */
static void sink_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  uint8_t discarded[SINK_BUFFER];
  for (int i = 0; i < DRAIN_TURN_READS; i++) {
    ssize_t size = read(source->fd, discarded, sizeof discarded);
    if (size > 0 || (size < 0 && errno == EINTR)) continue;
    if (size == 0 || errno != EAGAIN) sink_close((struct sink *)source);
    return;
  }
}

void sink_take(struct source *output) {
  if (output->fd < 0) return;
  if (sinks.open >= SINKS_MAX) sink_close_oldest();
  struct sink *sink = malloc(sizeof *sink);
  if (!sink) {
    source_close(output);
    return;
  }
  *sink = (struct sink){.source = {.fd = -1, .ready = sink_ready}};
  source_move(output, &sink->source);
  *sinks.last = sink;
  sinks.last = &sink->next;
  sinks.open++;
  if (sink->source.fd < 0) sink_close(sink);
}

bool sink_close_oldest(void) {
  for (struct sink *sink = sinks.first; sink; sink = sink->next) {
    if (sink->source.fd < 0) continue;
    sink_close(sink);
    return true;
  }
  return false;
}

void sinks_bury(void) {
  if (!sinks.any_closed) return;
  sinks.any_closed = false;
  struct sink **at = &sinks.first;
  while (*at) {
    struct sink *sink = *at;
    if (sink->source.fd >= 0) {
      at = &sink->next;
      continue;
    }
    *at = sink->next;
    free(sink);
  }
  sinks.last = at;
}

void sinks_end(void) {
  while (sink_close_oldest()) continue;
  sinks_bury();
}
