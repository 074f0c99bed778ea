/*
 * One link: received bytes, the requests in them, and the answers. Input is untrusted: the size of a frame is
 * checked before the frame is buffered, every queue has a limit, and a link with a malformed frame gets a
 * refusal and is closed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "loop/server.h"

#define SEND_PIECES 16

struct outcome answered(void) {
  return (struct outcome){.kind = ANSWER};
}

struct outcome later(void) {
  return (struct outcome){.kind = LATER};
}

struct outcome refused(enum refusal_code code, const char *message) {
  return (struct outcome){.kind = REFUSE, .code = code, .message = message};
}

struct outcome system_error(int error) {
  const char *text = strerrordesc_np(error);
  return (struct outcome){.kind = REFUSE, .code = SYSTEM, .error = error, .message = text ? text : "system error"};
}

struct outcome malformed(void) {
  return refused(MALFORMED, "malformed request");
}

static void link_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  struct link *link = (struct link *)source;
  if (events & EPOLLIN) link->readable = true;
  if (!(events & EPOLLIN) && (events & (EPOLLHUP | EPOLLERR))) link_close(link);
}

struct link *link_open(struct server *server, int fd) {
  int slot = 0;
  while (slot < CONNECTIONS_MAX && server->links[slot]) slot++;
  if (slot == CONNECTIONS_MAX) return NULL;
  struct link *link = calloc(1, sizeof *link);
  if (!link) return NULL;
  link->source = (struct source){.fd = fd, .ready = link_ready};
  link->server = server;
  link->opened_at = link->received_at = link->sent_at = server->lived_ms;
  link->last = &link->first;
  if (!source_watch(server, &link->source, EPOLLIN)) {
    free(link);
    return NULL;
  }
  server->links[slot] = link;
  if (slot >= server->links_end) server->links_end = slot + 1;
  return link;
}

static void queue_drop(struct link *link) {
  while (link->first) {
    struct chunk *chunk = link->first;
    link->first = chunk->next;
    free(chunk);
  }
  link->last = &link->first;
  link->queued = 0;
}

void link_close(struct link *link) {
  if (link->dead) return;
  struct server *server = link->server;
  link->dead = true;
  source_close(&link->source);
  queue_drop(link);
  server->file_service->link_gone(link);
  if (server->service && server->service->link_gone) server->service->link_gone(server, link);
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i] == link) server->links[i] = NULL;
  }
  while (server->links_end > 0 && !server->links[server->links_end - 1]) server->links_end--;
  link->next_dead = server->dead_links;
  server->dead_links = link;
}

void links_free_closed(struct server *server) {
  while (server->dead_links) {
    struct link *link = server->dead_links;
    server->dead_links = link->next_dead;
    server->file_service->free_link(link);
    free(link->input);
    free(link);
  }
}

bool link_has_room(const struct link *link) {
  return link->queued <= LINK_QUEUE_MAX;
}

static bool may_take(const struct link *link) {
  return !link->dead && !link->closing && link_has_room(link) && link->in_flight < REQUESTS_IN_FLIGHT_MAX;
}

void link_send(struct link *link, struct chunk *chunk) {
  if (link->dead) {
    free(chunk);
    return;
  }
  if (!chunk) {
    link_close(link);
    return;
  }
  if (!link->first) link->sent_at = link->server->lived_ms;
  *link->last = chunk;
  link->last = &chunk->next;
  link->queued += chunk->size;
}

struct chunk *refusal_frame(uint32_t id, struct outcome outcome) {
  size_t length = strnlen(outcome.message, MESSAGE_MAX);
  struct writer out = writer_begin(id, TYPE_REFUSAL, 20 + length);
  write_u32(&out, outcome.code);
  write_u32(&out, (uint32_t)outcome.error);
  write_u64(&out, outcome.floor);
  write_bytes(&out, outcome.message, length);
  return writer_end(&out);
}

static void send_refusal(struct link *link, uint32_t id, struct outcome outcome) {
  link_send(link, refusal_frame(id, outcome));
}

static void settle(struct link *link, uint32_t id, struct writer *out, struct outcome outcome) {
  if (outcome.kind == ANSWER) {
    link_send(link, writer_end(out));
    return;
  }
  writer_drop(out);
  if (outcome.kind == REFUSE) send_refusal(link, id, outcome);
}

struct pending pending_of(const struct request *request) {
  request->link->in_flight++;
  return (struct pending){.link = request->link, .id = request->id, .type = request->type};
}

struct writer pending_writer(const struct pending *pending, size_t room) {
  return writer_begin(pending->id, pending->type | TYPE_ANSWER, room);
}

void pending_settle(struct pending *pending, struct writer *out, struct outcome outcome) {
  if (!pending->link) {
    writer_drop(out);
    return;
  }
  pending->link->in_flight--;
  settle(pending->link, pending->id, out, outcome);
  pending->link = NULL;
}

static bool slice_is(struct slice text, const char *wanted) {
  return text.size == strlen(wanted) && memcmp(text.data, wanted, text.size) == 0;
}

static void fence(struct server *server, uint64_t generation) {
  server->generation = generation;
  for (int i = 0; i < server->links_end; i++) {
    struct link *link = server->links[i];
    if (link && link->greeted && link->generation < generation) link_close(link);
  }
}

struct greeting read_greeting(struct reader *in) {
  read_u32(in);
  uint64_t generation = read_u64(in);
  struct slice installation = read_str(in);
  return (struct greeting){generation, installation, read_str(in)};
}

struct outcome greeting_check(struct request *request, const struct greeting *greeting) {
  struct server *server = request->server;
  struct link *link = request->link;
  if ((server->installation && !slice_is(greeting->installation, server->installation)) ||
      (server->sandbox && !slice_is(greeting->sandbox, server->sandbox))) {
    link->closing = true;
    return refused(WRONG_IDENTITY, "this is another sandbox");
  }
  if (greeting->generation < server->generation) {
    link->closing = true;
    return refused(STALE_GENERATION, "a newer generation has been here");
  }
  if (greeting->generation > server->generation) server->file_service->renew(&server->files);
  link->generation = greeting->generation;
  fence(server, greeting->generation);
  return answered();
}

void write_welcome(const struct server *server, struct writer *out) {
  write_u32(out, PROTOCOL_VERSION);
  write_str(out, HOLDFAST_VERSION);
  write_str(out, server->boot_id);
  write_u64(out, server->generation);
  write_u64(out, server->started_at_ms);
  write_u32(out, FRAME_SIZE_MAX);
}

static bool has_place(const struct server *server) {
  int greeted = 0;
  for (int i = 0; i < server->links_end; i++) greeted += server->links[i] && server->links[i]->greeted;
  return greeted < LINKS_MAX;
}

static struct outcome handle_hello(struct request *request) {
  struct link *link = request->link;
  struct greeting greeting = read_greeting(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct outcome outcome = greeting_check(request, &greeting);
  if (outcome.kind != ANSWER) return outcome;
  if (!link->greeted && !has_place(request->server)) {
    link->closing = true;
    return refused(LIMIT, "too many links");
  }
  link->greeted = true;
  write_welcome(request->server, &request->out);
  return answered();
}

static struct outcome handle_ping(struct request *request) {
  uint64_t nonce = read_u64(&request->in);
  if (!reader_done(&request->in)) return malformed();
  write_u64(&request->out, nonce);
  write_u64(&request->out, request->server->lived_ms);
  return answered();
}

static const struct route common_routes[] = {{1, handle_hello}, {2, handle_ping}, {0, NULL}};

static const struct route *find_route(const struct route *routes, uint16_t type) {
  for (; routes && routes->type; routes++) {
    if (routes->type == type) return routes;
  }
  return NULL;
}

/* Returns the handler of a request; NULL if its type is unknown or is not allowed before the hello. */
static const struct route *route_for(const struct link *link, uint16_t type) {
  const struct service *service = link->server->service;
  const struct route *route = find_route(common_routes, type);
  if (!link->greeted) {
    if (route == &common_routes[0]) return route;
    return service ? find_route(service->greetings, type) : NULL;
  }
  if (!route) route = find_route(link->server->file_service->routes, type);
  for (const struct route *const *routes = service ? service->routes : NULL; !route && routes && *routes; routes++) {
    route = find_route(*routes, type);
  }
  return route;
}

static void dispatch(struct link *link, const struct frame *frame) {
  const struct route *route = route_for(link, frame->type);
  struct request request = {
      .server = link->server,
      .link = link,
      .id = frame->id,
      .type = frame->type,
      .in = reader_of(frame->payload, frame->payload_size),
  };
  if (!route) {
    struct outcome none = link->greeted ? refused(UNKNOWN_TYPE, "unknown request")
                                        : refused(NOT_GREETED, "a hello must come first");
    settle(link, frame->id, &request.out, none);
  } else {
    request.out = writer_begin(frame->id, frame->type | TYPE_ANSWER, 128);
    struct outcome outcome = route->handle(&request);
    settle(link, frame->id, &request.out, outcome);
  }
}

/* Makes room for a frame of `need` bytes, some of which are already received. */
static bool input_prepare(struct link *link, size_t need) {
  size_t have = link->input_end - link->input_start;
  size_t wanted = need > LINK_INPUT_BUFFER ? need : LINK_INPUT_BUFFER;
  if (link->input_room - link->input_start >= need && link->input_end < link->input_room) return true;
  if (link->input_room >= wanted) {
    memmove(link->input, link->input + link->input_start, have);
  } else {
    uint8_t *grown = malloc(wanted);
    if (!grown) return false;
    if (have > 0) memcpy(grown, link->input + link->input_start, have);
    free(link->input);
    link->input = grown;
    link->input_room = wanted;
  }
  link->input_start = 0;
  link->input_end = have;
  return true;
}

/*
 * Receives bytes. If the current frame is large, receives at most the rest of it, so that the next frame starts at the
 * beginning of the buffer and the payload need not be moved. Otherwise may receive several frames at once.
 */
static void input_receive(struct link *link, size_t need) {
  if (!input_prepare(link, need)) {
    link_close(link);
    return;
  }
  size_t have = link->input_end - link->input_start;
  size_t size = link->input_room - link->input_end;
  if (need > LINK_INPUT_BUFFER) {
    size = need - have;
  } else if (size > LINK_INPUT_BUFFER) {
    size = LINK_INPUT_BUFFER;
  }
  ssize_t got = recv(link->source.fd, link->input + link->input_end, size, MSG_DONTWAIT);
  if (got > 0) {
    link->input_end += (size_t)got;
    link->received_at = link->server->lived_ms;
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    link_close(link);
  } else if (errno == EAGAIN) {
    link->readable = false;
  }
}

void link_pump(struct link *link) {
  size_t budget = LINK_TURN_BYTES;
  link->stalled = false;
  while (may_take(link)) {
    struct frame frame;
    size_t need;
    const uint8_t *input = link->input ? link->input + link->input_start : (const uint8_t *)"";
    switch (frame_parse(input, link->input_end - link->input_start, &frame, &need)) {
      case FRAME_WHOLE:
        if (budget == 0) {
          server_due(link->server, link->server->lived_ms);
          return;
        }
        budget -= need < budget ? need : budget;
        link->input_start += need;
        dispatch(link, &frame);
        if (link->input_start == link->input_end) link->input_start = link->input_end = 0;
        break;
      case FRAME_TOO_LARGE:
        send_refusal(link, frame.id, refused(TOO_LARGE, "frame larger than the limit"));
        link->closing = true;
        return;
      case FRAME_TOO_SMALL:
        send_refusal(link, frame.id, refused(MALFORMED, "frame smaller than its header"));
        link->closing = true;
        return;
      case FRAME_PARTIAL:
        if (!link->readable) return;
        input_receive(link, need);
        break;
    }
  }
  link->stalled = true;
}

static void sent(struct link *link, size_t size) {
  link->sent_at = link->server->lived_ms;
  link->queued -= size;
  while (size > 0) {
    struct chunk *chunk = link->first;
    size_t rest = chunk->size - chunk->sent;
    if (size < rest) {
      chunk->sent += size;
      return;
    }
    size -= rest;
    link->first = chunk->next;
    if (!link->first) link->last = &link->first;
    free(chunk);
  }
}

static bool send_some(struct link *link) {
  struct iovec pieces[SEND_PIECES];
  struct msghdr message = {.msg_iov = pieces};
  for (struct chunk *chunk = link->first; chunk && message.msg_iovlen < SEND_PIECES; chunk = chunk->next) {
    pieces[message.msg_iovlen++] = (struct iovec){chunk->data + chunk->sent, chunk->size - chunk->sent};
  }
  ssize_t size = sendmsg(link->source.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (size > 0) {
    sent(link, (size_t)size);
    return true;
  }
  if (size < 0 && errno != EAGAIN && errno != EINTR) link_close(link);
  return false;
}

void link_flush(struct link *link) {
  bool held = link->stalled || !link_has_room(link);
  while (!link->dead && link->first && send_some(link)) continue;
  if (link->dead) return;
  if (link->closing && !link->first) {
    link_close(link);
    return;
  }
  if (held && may_take(link)) server_due(link->server, link->server->lived_ms);
  uint32_t interest = (may_take(link) ? EPOLLIN : 0) | (link->first ? EPOLLOUT : 0);
  if (!source_watch(link->server, &link->source, interest)) link_close(link);
}

/*
 * Closes a link whose peer is silent or does not read. Time in which the keeper itself does not read from the link does
 * not count as silence of the peer.
 */
void link_check(struct link *link) {
  if (link->dead) return;
  struct server *server = link->server;
  if (!may_take(link)) link->received_at = server->lived_ms;
  uint64_t silent_at = link->received_at + LINK_SILENCE_MS;
  if (!link->greeted && silent_at > link->opened_at + LINK_GREETING_MS) {
    silent_at = link->opened_at + LINK_GREETING_MS;
  }
  uint64_t stuck_at = link->first ? link->sent_at + LINK_STUCK_MS : UINT64_MAX;
  uint64_t end = silent_at < stuck_at ? silent_at : stuck_at;
  if (end <= server->lived_ms) {
    link_close(link);
  } else {
    server_due(server, end);
  }
}
