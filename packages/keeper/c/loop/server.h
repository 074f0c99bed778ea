/*
 * The event loop shared by keeper and porter: links, requests and answers, and jobs in forked children.
 *
 * In each turn the loop sleeps in epoll, processes requests from links, reaps children, lets the service do due work,
 * and sends. No step of a turn waits for a peer.
 *
 * All deadlines are in lived time: time that excludes pauses and standby. Each turn adds at most a second to lived
 * time, however long the process was frozen or in standby. A pause or standby therefore brings a deadline closer by at
 * most a second.
 */
#ifndef HOLDFAST_SERVER_H
#define HOLDFAST_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "loop/frame.h"
#include "loop/limits.h"

struct server;
struct link;
struct handle;
struct watches;

/* An entry of the epoll set. A closed source has fd -1; its memory stays valid until the end of the loop's
 * turn. */
struct source {
  int fd;
  int epoll;
  uint32_t interest;
  void (*ready)(struct server *server, struct source *source, uint32_t events);
};

bool source_watch(struct server *server, struct source *source, uint32_t interest);
/*
 * Stops watching the source for all events, including errors, but does not close it. Used while an event cannot be
 * handled yet: a watched source would wake the loop again and again.
 */
void source_ignore(struct source *source);
void source_close(struct source *source);
/*
 * Moves the watched descriptor from the source `from` to the source `to`, which must have no descriptor. Afterwards
 * `from` has none. If the descriptor cannot be watched for `to`, it is closed and neither source has a descriptor.
 */
void source_move(struct source *from, struct source *to);

/*
 * The result of a request handler. ANSWER: an answer was written. LATER: an answer follows later. REFUSE: the request
 * is refused.
 */
struct outcome {
  enum { ANSWER, LATER, REFUSE } kind;
  enum refusal_code code;
  int error;
  uint64_t floor;
  const char *message;
};

struct outcome answered(void);
struct outcome later(void);
struct outcome refused(enum refusal_code code, const char *message);
struct outcome system_error(int error);
struct outcome malformed(void);

struct request {
  struct server *server;
  struct link *link;
  uint32_t id;
  uint16_t type;
  struct reader in;
  struct writer out;
};

struct route {
  uint16_t type;
  struct outcome (*handle)(struct request *request);
};

/* A request that is answered later. `link` becomes NULL when the link is closed. */
struct pending {
  struct link *link;
  uint32_t id;
  uint16_t type;
};

struct link {
  struct source source;
  struct server *server;
  bool greeted;
  /* Whether the socket may have bytes to read. */
  bool readable;
  /* Whether requests of this link still wait, because a limit was reached before all were processed. */
  bool stalled;
  /* Whether to close the link once its queue is sent. */
  bool closing;
  bool dead;
  uint64_t generation;
  uint64_t opened_at;
  uint64_t received_at;
  uint64_t sent_at;
  uint8_t *input;
  size_t input_room;
  size_t input_start;
  size_t input_end;
  struct chunk *first;
  struct chunk **last;
  size_t queued;
  uint32_t in_flight;
  /* Number of the first exec event that did not fit in the queue and must be sent later; 0 if there is
   * none. */
  uint64_t events_owed;
  struct handle *handles;
  struct watches *watches;
  struct link *next_dead;
};

struct job;

struct file_rules;

/*
 * The requests for files, which every server answers, and the functions that the loop calls for the handles and watches
 * of links. The implementation is in files/. It reaches the loop as a table of functions, so that the loop does not
 * include files/.
 */
struct file_service {
  const struct route *routes;
  /*
   * Called when a server of a larger generation says hello, before that server may send requests. Updates mount and
   * device numbers.
   */
  void (*renew)(struct file_rules *rules);
  /* Called once per turn for every open link. */
  void (*tick)(struct link *link);
  void (*link_gone)(struct link *link);
  /* Frees what belongs to the link. Called at the end of the turn in which the link was closed. */
  void (*free_link)(struct link *link);
};

/*
 * What a program adds to the loop. Without a service, a server answers only hello, ping and the file requests. Any
 * member may be NULL.
 */
struct service {
  /* Requests that a connection may send as its first one instead of a hello. */
  const struct route *greetings;
  /* Tables of the requests that are answered after the hello. The list ends with NULL. */
  const struct route *const *routes;
  /* Returns whether `dying` must be called for each dead child before the child is reaped. */
  bool (*watches_deaths)(void);
  /* Called for a dead child that is not reaped yet. */
  void (*dying)(struct server *server, pid_t pid);
  /* Called after a child that belongs to no job was reaped. */
  void (*reaped)(struct server *server, pid_t pid, int status);
  /* Does the work that is due, and calls server_due for work that is due later. */
  void (*tick)(struct server *server);
  void (*link_gone)(struct server *server, struct link *link);
  /* Called at the end of a turn, when no pointer to an object closed in that turn remains. */
  void (*free_closed)(struct server *server);
};

struct file_rules {
  uint32_t uid;
  uint32_t gid;
  bool reserve;
  bool one_mount;
  const char *control;
  bool own_mount;
  uint64_t mount;
  uint64_t root_mount;
  struct {
    uint64_t dev;
    uint64_t ino;
  } reserved[3];
  size_t reserved_count;
};

struct server {
  int epoll;
  struct source signals;
  struct source listener;
  const struct service *service;
  const struct file_service *file_service;
  struct file_rules files;
  const char *installation;
  const char *sandbox;
  char boot_id[33];
  uint64_t generation;
  uint64_t started_at_ms;
  /* Whether to reap every child of this process, as PID 1 must. If not, only the children of jobs are reaped. */
  bool reap_all;
  bool child_died;
  bool stopping;
  /*
   * Whether the keeper is PID 1 of its own pid namespace. If so, processes of the sandbox can neither open a link nor
   * stop the keeper.
   */
  bool init;
  /* The monotonic clock at the last turn. */
  uint64_t clock_ms;
  /* The current lived time. */
  uint64_t lived_ms;
  /* Lived time at which the next turn must begin at the latest. */
  uint64_t due_ms;
  uint64_t busy_at;
  bool trimmed;
  /* Lived time at which the server accepts connections again; 0 if it accepts them now. */
  uint64_t listen_at;
  /* Links, and connections that have not sent a hello yet. */
  struct link *links[CONNECTIONS_MAX];
  /* Index of the first slot after the last used one. */
  int links_end;
  struct link *dead_links;
  struct job *jobs;
  size_t job_count;
};

/* Initialises the server; `service` may be NULL. Returns false with errno if a system call fails. */
bool server_init(struct server *server, const struct service *service, const struct file_service *file_service);
void server_turn(struct server *server);
void server_end(struct server *server);
/* Makes the next turn of the loop begin at this lived time at the latest. */
void server_due(struct server *server, uint64_t at_ms);
/* Stops accepting connections for a while, because a pending connection that cannot be accepted would keep
 * the loop awake. */
void server_listen_later(struct server *server);
uint64_t realtime_us(void);

/*
 * Runs `work`, which may take long, in a forked child. Besides stdio, the child has only the descriptor that `work`
 * gets. The value that `work` returns, 0 or an errno, is the answer. The child is killed when the request's link is
 * gone.
 */
struct outcome job_start(struct request *request, int fd, int (*work)(int fd, const void *argument),
                         const void *argument);

/* The identity of the peer. The first frame of every connection contains it. */
struct greeting {
  uint64_t generation;
  struct slice installation;
  struct slice sandbox;
};

struct greeting read_greeting(struct reader *in);
/*
 * Checks a greeting. If it is valid, adopts its generation and closes links of smaller generations. If it is invalid,
 * refuses it, and closes the connection once the refusal was sent.
 */
struct outcome greeting_check(struct request *request, const struct greeting *greeting);
void write_welcome(const struct server *server, struct writer *out);
/* Builds a refusal; NULL if memory runs out. */
struct chunk *refusal_frame(uint32_t id, struct outcome outcome);

struct link *link_open(struct server *server, int fd);
/* Processes as many received requests as the limits allow. */
void link_pump(struct link *link);
/* Sends as much of the queue as possible, and updates the epoll events for which the link is watched. */
void link_flush(struct link *link);
void link_check(struct link *link);
void link_close(struct link *link);
/* Returns whether the queue has room for answers. */
bool link_has_room(const struct link *link);
/* Queues a chunk and takes ownership of it. NULL stands for an answer that could not be built, and closes
 * the link. */
void link_send(struct link *link, struct chunk *chunk);
void links_free_closed(struct server *server);

struct pending pending_of(const struct request *request);
struct writer pending_writer(const struct pending *pending, size_t room);
/* Completes a request that is answered later: sends the answer in `out`, or a refusal if `outcome` is one. If the
 * link is closed, sends nothing. */
void pending_settle(struct pending *pending, struct writer *out, struct outcome outcome);

#endif
