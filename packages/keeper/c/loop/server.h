/*
 * The loop that keeper and porter share: links, requests and their answers, and jobs in forked children.
 *
 * One turn: sleep in epoll, take requests from links, reap children, let the service act on what has come due, send.
 * Nothing in a turn waits for the other side of anything. All deadlines are in lived time, which advances by at most a
 * second a turn: what was frozen or on disk meanwhile finds its deadlines as far away as they were.
 */
#ifndef HOLDFAST_SERVER_H
#define HOLDFAST_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"
#include "limits.h"

struct server;
struct link;
struct handle;
struct watches;

/* Something in the epoll set. A closed one has fd -1; its memory stays until the turn is over. */
struct source {
  int fd;
  int epoll;
  uint32_t interest;
  void (*ready)(struct server *server, struct source *source, uint32_t events);
};

bool source_watch(struct server *server, struct source *source, uint32_t interest);
/* Leaves it open, and its errors unseen: one that nothing can be done about yet would keep the loop awake. */
void source_ignore(struct source *source);
void source_close(struct source *source);
/* Has `to`, which is not open, watch what `from` did; that one is closed then. Both are where it can't be watched. */
void source_move(struct source *from, struct source *to);

/* How a handler ended: with the answer it wrote, with an answer that comes later, or with a refusal. */
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

/* A request in flight, to be answered when its time has come. The link is NULL once it is gone. */
struct pending {
  struct link *link;
  uint32_t id;
  uint16_t type;
};

struct link {
  struct source source;
  struct server *server;
  bool greeted;
  /* Bytes may be waiting in the socket. */
  bool readable;
  /* A limit kept requests from being taken. */
  bool stalled;
  /* To be closed once what is queued was sent. */
  bool closing;
  bool dead;
  uint64_t generation;
  uint64_t opened_at;
  uint64_t heard_at;
  uint64_t moved_at;
  uint8_t *input;
  size_t input_room;
  size_t input_start;
  size_t input_end;
  struct chunk *first;
  struct chunk **last;
  size_t queued;
  uint32_t in_flight;
  /* The first event of an exec that there was no room to announce, by its number; 0 where none is owed. */
  uint64_t events_owed;
  struct handle *handles;
  struct watches *watches;
  struct link *next_dead;
};

struct job;

/* What a server offers beyond hello, ping and files. Any member may be NULL. */
struct service {
  /* What a connection may begin with instead of a hello. */
  const struct route *greetings;
  const struct route *routes;
  /* Whether deaths matter before they are waited for: `dying` is called where this says so. */
  bool (*watches_deaths)(void);
  /* A child is dead, but not waited for yet. */
  void (*dying)(struct server *server, pid_t pid);
  /* A child that no job knows was reaped. */
  void (*reaped)(struct server *server, pid_t pid, int status);
  /* Acts on what is due, and calls server_due for what is not yet. */
  void (*tick)(struct server *server);
  void (*link_gone)(struct server *server, struct link *link);
  /* The end of a turn: nothing points to anything closed in it any more. */
  void (*bury)(struct server *server);
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
  struct file_rules files;
  const char *installation;
  const char *sandbox;
  char boot_id[33];
  uint64_t generation;
  uint64_t started_at_ms;
  /* Reap every child, as PID 1 has to, or only those of jobs. */
  bool reap_all;
  bool child_died;
  bool stopping;
  /* PID 1 of its own namespace: what comes from inside may neither link nor stop it. */
  bool init;
  uint64_t clock_ms;
  uint64_t lived_ms;
  uint64_t due_ms;
  uint64_t busy_at;
  bool trimmed;
  /* Lived time from which newcomers are taken again; 0 while they are. */
  uint64_t listen_at;
  /* Links, and newcomers that may become one. */
  struct link *links[CONNECTIONS_MAX];
  /* No place from here on is taken. */
  int links_end;
  struct link *dead_links;
  struct job *jobs;
  size_t job_count;
};

/* False with errno where the kernel refuses something. */
bool server_init(struct server *server, const struct service *service);
void server_turn(struct server *server);
void server_end(struct server *server);
/* Wakes the loop no later than this point of lived time. */
void server_due(struct server *server, uint64_t at_ms);
/* Takes no newcomers for a moment: one that can't be taken would keep the loop awake. */
void server_listen_later(struct server *server);
uint64_t realtime_us(void);

/*
 * Runs `work` in a forked child that keeps no descriptor but `fd`; what it returns, 0 or an errno, is the answer.
 * For what may take long. It is killed when the link of its request is gone.
 */
struct outcome job_start(struct request *request, int fd, int (*work)(int fd, const void *argument),
                         const void *argument);

/* Who asks, in the first frame of every connection. */
struct greeting {
  uint64_t generation;
  struct slice installation;
  struct slice sandbox;
};

struct greeting read_greeting(struct reader *in);
/* Takes the generation, and drops links with a smaller one; or refuses, and has the connection closed. */
struct outcome greeting_check(struct request *request, const struct greeting *greeting);
void write_welcome(const struct server *server, struct writer *out);
/* NULL where there is no memory for it. */
struct chunk *refusal_frame(uint32_t id, struct outcome outcome);

struct link *link_open(struct server *server, int fd);
/* Takes what has come in, as far as limits allow. */
void link_pump(struct link *link);
/* Sends what can be sent, and settles what the link is watched for. */
void link_flush(struct link *link);
void link_check(struct link *link);
void link_close(struct link *link);
/* Whether the queue has room for answers. */
bool link_has_room(const struct link *link);
/* Takes the chunk over. NULL, for an answer that could not be built, closes the link. */
void link_send(struct link *link, struct chunk *chunk);
void links_bury(struct server *server);

struct pending pending_of(const struct request *request);
struct writer pending_writer(const struct pending *pending, size_t room);
/* Sends the answer, or the refusal in its place, and counts the request as done. */
void pending_settle(struct pending *pending, struct writer *out, struct outcome outcome);

#endif
