#include "service/deadline.h"

/*
 * The time at which the sandbox ends, or 0 if it has no deadline. It is in lived time, so that neither a pause nor
 * standby ends a sandbox early.
 */
static uint64_t ends_at;

struct outcome handle_deadline(struct request *request) {
  uint64_t remaining_ms = read_u64(&request->in);
  if (!reader_done(&request->in)) return malformed();
  uint64_t longest = UINT64_MAX - request->server->lived_ms;
  if (remaining_ms > longest) remaining_ms = longest;
  ends_at = remaining_ms ? request->server->lived_ms + remaining_ms : 0;
  return answered();
}

static bool has_link(const struct server *server) {
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i] && server->links[i]->greeted) return true;
  }
  return false;
}

void deadline_check(struct server *server) {
  if (!ends_at) return;
  if (server->lived_ms < ends_at) {
    server_due(server, ends_at);
  } else if (!has_link(server)) {
    server->stopping = true;
  }
}
