#include "stream/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/descriptors.h"

#define CHUNK_HEADER 4u

struct stream;

struct side {
  struct source source;
  struct stream *stream;
};

/* Bytes received from one side that the other side has not accepted yet. */
struct rest {
  uint8_t *data;
  size_t start;
  size_t end;
};

struct stream {
  struct stream *next;
  struct server *server;
  enum { DIALLING, REFUSING, OPEN, CLOSED } stage;
  struct side client;
  struct side port;
  uint32_t dial_id;
  uint16_t port_number;
  sa_family_t family;
  uint64_t generation;
  /*
   * Deadline for dialling or, if the dial failed, for sending the refusal. In lived time, which excludes pauses and
   * standby.
   */
  uint64_t ends_at;

  /* Data from the client for the port, in chunks as received from the client. */
  struct rest in;
  uint8_t in_header[CHUNK_HEADER];
  size_t in_header_size;
  /* Number of bytes of the current chunk that have not arrived yet. */
  uint32_t in_left;
  /* Whether the client has ended its direction. */
  bool in_ended;
  /* Whether nothing more will be sent to the port, because everything was sent or the port accepts no
   * more. */
  bool in_over;

  /* Data from the port for the client. */
  struct rest out;
  /* Whether the port has ended its direction. The end is sent to the client after `out`. */
  bool out_ended;
  /*
   * Whether a write showed that the port reset the connection. If so, a later end of file from the port is not a
   * regular end.
   */
  bool reset;
};

static struct {
  /* The list of streams. A closed stream stays in the list until the end of the loop's turn. */
  struct stream *first;
  uint32_t open;
  bool any_closed;
  /* Buffer for transfers; allocated only while there are streams. */
  uint8_t *piece;
} streams;

uint32_t streams_open(void) {
  return streams.open;
}

/* ── Bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool has_rest(const struct rest *rest) {
  return rest->start < rest->end;
}

static void rest_drop(struct rest *rest) {
  free(rest->data);
  *rest = (struct rest){0};
}

static bool rest_keep(struct rest *rest, const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size);
  if (!copy) return false;
  memcpy(copy, data, size);
  *rest = (struct rest){.data = copy, .end = size};
  return true;
}

static void rest_took(struct rest *rest, size_t size) {
  rest->start += size;
  if (!has_rest(rest)) rest_drop(rest);
}

/*
 * Sends as many bytes as the socket accepts now. Returns their number, which is 0 if the socket has no room; -1 with
 * errno on an error.
 */
static ssize_t offer(int fd, const uint8_t *data, size_t size) {
  ssize_t sent;
  do {
    sent = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 && errno == EAGAIN ? 0 : sent;
}

static ssize_t take(int fd, uint8_t *data, size_t size) {
  ssize_t got;
  do {
    got = recv(fd, data, size, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

/* ── Closing and cutting ─────────────────────────────────────────────────────────────────────────────────────────── */

static void stream_close(struct stream *stream) {
  if (stream->stage == CLOSED) return;
  stream->stage = CLOSED;
  source_close(&stream->client.source);
  source_close(&stream->port.source);
  rest_drop(&stream->in);
  rest_drop(&stream->out);
  streams.open--;
  streams.any_closed = true;
}

/* Cuts the stream: resets the connection to the port, so that the process at the port knows that its data is
 * incomplete. */
static void stream_cut(struct stream *stream) {
  struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  if (stream->port.source.fd >= 0) {
    setsockopt(stream->port.source.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  stream_close(stream);
}

/* ── To the client ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void out_put(struct stream *stream, const uint8_t *data, size_t size) {
  ssize_t sent = offer(stream->client.source.fd, data, size);
  if (sent < 0 || ((size_t)sent < size && !rest_keep(&stream->out, data + sent, size - (size_t)sent))) {
    stream_cut(stream);
  }
}

static void out_drain(struct stream *stream) {
  struct rest *rest = &stream->out;
  ssize_t sent = offer(stream->client.source.fd, rest->data + rest->start, rest->end - rest->start);
  if (sent < 0) {
    stream_cut(stream);
    return;
  }
  rest_took(rest, (size_t)sent);
}

/*
 * Reads from the port and sends the data to the client. Even if the port has reset the connection, the data that
 * arrived before the reset is read first: the kernel reports the reset only after that data.
 */
static void out_take(struct stream *stream) {
  ssize_t got = take(stream->port.source.fd, streams.piece + CHUNK_HEADER, STREAM_PIECE);
  if (got < 0 && errno == EAGAIN) return;
  if (got < 0 || (got == 0 && stream->reset)) {
    stream_cut(stream);
    return;
  }
  store_u32(streams.piece, (uint32_t)got);
  stream->out_ended = got == 0;
  out_put(stream, streams.piece, CHUNK_HEADER + (size_t)got);
}

static void out_frame(struct stream *stream, struct chunk *frame) {
  if (frame) {
    out_put(stream, frame->data, frame->size);
  } else {
    stream_cut(stream);
  }
  free(frame);
}

/* ── To the port ───────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Handles a failed write to the port. EPIPE means that the port had already ended its direction regularly, so an end
 * of file from the port stays valid.
 */
static void in_failed(struct stream *stream, int error) {
  stream->in_over = true;
  if (error != EPIPE) stream->reset = true;
}

static void in_header(struct stream *stream, uint8_t byte) {
  stream->in_header[stream->in_header_size++] = byte;
  if (stream->in_header_size < CHUNK_HEADER) return;
  stream->in_header_size = 0;
  stream->in_left = load_u32(stream->in_header);
  stream->in_ended = stream->in_left == 0;
}

/* Sends the content of the client's chunks to the port. Returns how many bytes of `data` were consumed, including
 * chunk headers. */
static size_t in_pass(struct stream *stream, const uint8_t *data, size_t size) {
  size_t at = 0;
  while (at < size && !stream->in_ended) {
    if (stream->in_left == 0) {
      in_header(stream, data[at++]);
      continue;
    }
    size_t wanted = stream->in_left < size - at ? stream->in_left : size - at;
    ssize_t sent = offer(stream->port.source.fd, data + at, wanted);
    if (sent < 0) in_failed(stream, errno);
    if (sent <= 0) break;
    stream->in_left -= (uint32_t)sent;
    at += (size_t)sent;
  }
  return at;
}

/*
 * Called after an attempt to send the client's data to the port, with the number of bytes that are left. If the client
 * has sent bytes after the end of its direction, cuts the stream. If the client has ended its direction properly, ends
 * the direction to the port too. Returns whether the bytes that are left must be kept for later.
 */
static bool in_check(struct stream *stream, size_t left) {
  if (left > 0 && stream->in_ended) {
    stream_cut(stream);
    return false;
  }
  if (stream->in_over) return false;
  if (stream->in_ended) {
    shutdown(stream->port.source.fd, SHUT_WR);
    stream->in_over = true;
  }
  return left > 0;
}

static void in_drain(struct stream *stream) {
  struct rest *rest = &stream->in;
  rest->start += in_pass(stream, rest->data + rest->start, rest->end - rest->start);
  if (!in_check(stream, rest->end - rest->start)) rest_drop(rest);
}

static bool may_take(const struct stream *stream) {
  return stream->stage == OPEN && !stream->in_over && !has_rest(&stream->in);
}

/* Reads from the client and sends the data to the port. Returns whether there may be more to read. */
static bool in_take(struct stream *stream) {
  ssize_t got = take(stream->client.source.fd, streams.piece, STREAM_PIECE);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    stream_cut(stream);
    return false;
  }
  size_t passed = in_pass(stream, streams.piece, (size_t)got);
  size_t left = (size_t)got - passed;
  if (in_check(stream, left) && !rest_keep(&stream->in, streams.piece + passed, left)) stream_cut(stream);
  return may_take(stream);
}

/* ── Both directions ─────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_over(const struct stream *stream) {
  if (has_rest(&stream->out)) return false;
  return stream->stage == REFUSING || (stream->stage == OPEN && stream->in_over && stream->out_ended);
}

/*
 * Watches each side only for events that can be handled now, except that a disconnect of the client is always watched.
 */
static void settle(struct stream *stream) {
  if (stream->stage != CLOSED && is_over(stream)) stream_close(stream);
  if (stream->stage == CLOSED) return;
  bool out_wanted = stream->stage == OPEN && !stream->out_ended && !has_rest(&stream->out);
  uint32_t client = (may_take(stream) ? EPOLLIN : 0) | (has_rest(&stream->out) ? EPOLLOUT : 0);
  uint32_t port = (out_wanted ? EPOLLIN : 0) | (has_rest(&stream->in) || stream->stage == DIALLING ? EPOLLOUT : 0);
  if (!port && stream->port.source.fd >= 0) source_ignore(&stream->port.source);
  if (!source_watch(stream->server, &stream->client.source, client) ||
      (port && !source_watch(stream->server, &stream->port.source, port))) {
    stream_cut(stream);
  }
}

/* Called when the client has disconnected. Sends to the port what the client had sent before, as far as the port
 * accepts it now. */
static void client_left(struct stream *stream) {
  if (may_take(stream)) {
    while (in_take(stream)) continue;
  }
  if (stream->stage == OPEN && stream->in_over && !has_rest(&stream->out)) {
    stream_close(stream);
  } else {
    stream_cut(stream);
  }
}

static void client_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  struct stream *stream = ((struct side *)source)->stream;
  if (events & (EPOLLHUP | EPOLLERR)) {
    client_left(stream);
    return;
  }
  if ((events & EPOLLOUT) && has_rest(&stream->out)) out_drain(stream);
  if ((events & EPOLLIN) && may_take(stream)) in_take(stream);
  settle(stream);
}

/* ── Dialling ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void refuse(struct stream *stream, struct outcome outcome) {
  stream->stage = REFUSING;
  stream->ends_at = stream->server->lived_ms + LINK_STUCK_MS;
  source_close(&stream->port.source);
  out_frame(stream, refusal_frame(stream->dial_id, outcome));
}

static socklen_t address_of(const struct stream *stream, struct sockaddr_storage *address) {
  *address = (struct sockaddr_storage){.ss_family = stream->family};
  if (stream->family == AF_INET6) {
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    six->sin6_port = htons(stream->port_number);
    six->sin6_addr = in6addr_loopback;
    return sizeof *six;
  }
  struct sockaddr_in *four = (struct sockaddr_in *)address;
  four->sin_port = htons(stream->port_number);
  four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return sizeof *four;
}

/* Starts to connect to the port. Returns 0; if that fails, closes the descriptor and returns the errno. */
static int dial(struct stream *stream, sa_family_t family) {
  struct sockaddr_storage address;
  int size = STREAM_SOCKET_BUFFER, on = 1;
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  stream->family = family;
  stream->port.source.fd = fd;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  socklen_t length = address_of(stream, &address);
  int error = descriptors_scarce(fd) ? EMFILE : 0;
  if (!error && connect(fd, (struct sockaddr *)&address, length) < 0 && errno != EINPROGRESS) error = errno;
  if (error) source_close(&stream->port.source);
  return error;
}

static struct outcome dial_refused(int error) {
  return error == EMFILE || error == ENFILE ? refused(LIMIT, "too many descriptors are open") : system_error(error);
}

/* Handles a failed connection attempt. After a refusal on IPv4 it tries IPv6, because a server may listen
 * on only one of them. */
static void dial_failed(struct stream *stream, int error) {
  bool again = stream->family == AF_INET && error == ECONNREFUSED;
  source_close(&stream->port.source);
  if (again && dial(stream, AF_INET6) == 0) return;
  refuse(stream, dial_refused(again || stream->family == AF_INET6 ? ECONNREFUSED : error));
}

/* Returns whether a socket is connected to itself, which can happen if there is no listener. */
static bool is_own_echo(int fd) {
  struct sockaddr_storage own = {0}, peer = {0};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return getsockname(fd, (struct sockaddr *)&own, &own_size) == 0 &&
         getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0 && own_size == peer_size &&
         memcmp(&own, &peer, own_size) == 0;
}

static void dialled(struct stream *stream) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(stream->port.source.fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  if (!error && is_own_echo(stream->port.source.fd)) error = ECONNREFUSED;
  if (error) {
    dial_failed(stream, error);
    return;
  }
  stream->stage = OPEN;
  stream->ends_at = UINT64_MAX;
  struct writer out = writer_begin(stream->dial_id, 3 | TYPE_ANSWER, 128);
  write_welcome(stream->server, &out);
  out_frame(stream, writer_end(&out));
}

static void port_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  struct stream *stream = ((struct side *)source)->stream;
  bool is_broken = events & (EPOLLHUP | EPOLLERR);
  if (stream->stage == DIALLING) {
    dialled(stream);
  } else {
    if (((events & EPOLLIN) || is_broken) && !stream->out_ended && !has_rest(&stream->out)) out_take(stream);
    if (((events & EPOLLOUT) || is_broken) && stream->stage == OPEN && has_rest(&stream->in)) in_drain(stream);
  }
  settle(stream);
}

/* Takes the connection from the link and closes the link. From then on the connection belongs to the stream. */
static void take_over(struct stream *stream, struct link *link) {
  source_move(&link->source, &stream->client.source);
  link_close(link);
  stream->next = streams.first;
  streams.first = stream;
  streams.open++;
  if (stream->client.source.fd < 0) {
    stream_close(stream);
  } else {
    settle(stream);
  }
}

static struct outcome begin(struct request *request, uint64_t generation, uint16_t port_number) {
  struct server *server = request->server;
  if (streams.open >= STREAMS_MAX) return refused(LIMIT, "too many streams");
  if (!streams.piece) streams.piece = malloc(CHUNK_HEADER + STREAM_PIECE);
  struct stream *stream = streams.piece ? malloc(sizeof *stream) : NULL;
  if (!stream) return system_error(ENOMEM);
  *stream = (struct stream){
      .server = server,
      .client = {.source = {.fd = -1, .ready = client_ready}, .stream = stream},
      .port = {.source = {.fd = -1, .ready = port_ready}, .stream = stream},
      .dial_id = request->id,
      .port_number = port_number,
      .generation = generation,
      .ends_at = server->lived_ms + DIAL_MS,
  };
  int error = dial(stream, AF_INET);
  if (error) {
    free(stream);
    return dial_refused(error);
  }
  take_over(stream, request->link);
  return later();
}

struct outcome handle_dial(struct request *request) {
  struct link *link = request->link;
  struct greeting greeting = read_greeting(&request->in);
  uint16_t port_number = read_u16(&request->in);
  if (!reader_done(&request->in) || port_number == 0) return malformed();
  struct outcome outcome = greeting_check(request, &greeting);
  if (outcome.kind != ANSWER) return outcome;
  /* If the client sends data before the keeper has answered the dial, the dial is refused: until then the client
   * cannot know which keeper receives the data. */
  bool is_early = link->input_start != link->input_end;
  outcome = is_early ? refused(MALFORMED, "data was sent before the dial was answered")
                     : begin(request, greeting.generation, port_number);
  if (outcome.kind == REFUSE) link->closing = true;
  return outcome;
}

/* ── Deadlines ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void check(struct server *server, struct stream *stream) {
  if (stream->generation < server->generation) {
    stream_cut(stream);
  } else if (stream->ends_at > server->lived_ms) {
    server_due(server, stream->ends_at);
  } else if (stream->stage == DIALLING) {
    refuse(stream, system_error(ETIMEDOUT));
    settle(stream);
  } else {
    stream_cut(stream);
  }
}

void streams_tick(struct server *server) {
  for (struct stream *stream = streams.first; stream; stream = stream->next) {
    if (stream->stage != CLOSED) check(server, stream);
  }
}

void streams_free_closed(void) {
  if (streams.any_closed) {
    streams.any_closed = false;
    for (struct stream **at = &streams.first; *at;) {
      struct stream *stream = *at;
      if (stream->stage != CLOSED) {
        at = &stream->next;
        continue;
      }
      *at = stream->next;
      free(stream);
    }
  }
  if (!streams.first && streams.piece) {
    free(streams.piece);
    streams.piece = NULL;
  }
}

void streams_end(void) {
  for (struct stream *stream = streams.first; stream; stream = stream->next) stream_cut(stream);
  streams_free_closed();
}
