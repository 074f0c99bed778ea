#include "loop/server.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loop/descriptors.h"

#define EVENTS_PER_TURN 64
#define REAPED_PER_TURN 512

struct job {
  struct job *next;
  pid_t pid;
  struct pending pending;
};

static uint64_t milliseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t realtime_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

bool source_watch(struct server *server, struct source *source, uint32_t interest) {
  bool known = source->interest != 0;
  uint32_t wanted = interest | EPOLLERR;
  if (known && source->interest == wanted) return true;
  struct epoll_event event = {.events = wanted, .data.ptr = source};
  if (epoll_ctl(server->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, source->fd, &event) < 0) return false;
  source->interest = wanted;
  source->epoll = server->epoll;
  return true;
}

void source_ignore(struct source *source) {
  if (source->interest) epoll_ctl(source->epoll, EPOLL_CTL_DEL, source->fd, NULL);
  source->interest = 0;
}

/*
 * Removes the source from epoll and closes it. Closing alone is not enough, because epoll keeps reporting the
 * descriptor while a forked child still has a copy of it.
 */
void source_close(struct source *source) {
  if (source->fd < 0) return;
  source_ignore(source);
  close(source->fd);
  source->fd = -1;
}

void source_move(struct source *from, struct source *to) {
  struct epoll_event event = {.events = from->interest, .data.ptr = to};
  if (from->interest && epoll_ctl(from->epoll, EPOLL_CTL_MOD, from->fd, &event) < 0) {
    source_close(from);
    return;
  }
  to->fd = from->fd;
  to->epoll = from->epoll;
  to->interest = from->interest;
  from->fd = -1;
  from->interest = 0;
}

void server_due(struct server *server, uint64_t at_ms) {
  if (at_ms < server->due_ms) server->due_ms = at_ms;
}

/*
 * Ends the loop on a termination signal. PID 1 cannot be ended from inside its sandbox: a signal from its own
 * namespace carries the sender's pid and is ignored; a signal from outside carries pid 0.
 */
static void signals_ready(struct server *server, struct source *source, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info[4];
  ssize_t size = sizeof info;
  while (size == sizeof info && (size = read(source->fd, info, sizeof info)) > 0) {
    for (size_t i = 0; i < (size_t)size / sizeof info[0]; i++) {
      if (info[i].ssi_signo == SIGCHLD) {
        server->child_died = true;
      } else if (!server->init || info[i].ssi_pid == 0) {
        server->stopping = true;
      }
    }
  }
}

static void make_boot_id(char text[33]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    uint64_t now = realtime_us();
    memcpy(bytes, &now, sizeof now);
    memcpy(bytes + 8, &now, sizeof now);
  }
  for (int i = 0; i < 16; i++) {
    text[2 * i] = digits[bytes[i] >> 4];
    text[2 * i + 1] = digits[bytes[i] & 15];
  }
  text[32] = 0;
}

static void pass_over(int number) {
  (void)number;
}

bool server_init(struct server *server, const struct service *service, const struct file_service *file_service) {
  *server = (struct server){.epoll = -1, .service = service, .file_service = file_service};
  server->signals = (struct source){.fd = -1, .ready = signals_ready};
  server->listener.fd = -1;
  make_boot_id(server->boot_id);
  server->started_at_ms = realtime_us() / 1000;
  server->clock_ms = milliseconds(CLOCK_MONOTONIC);
  server->trimmed = true;
  /*
   * Installs handlers for SIGPIPE and SIGXFSZ. A write that raises one of these signals then returns an error and does
   * not end the process. SIG_IGN would have the same effect, but commands would inherit it.
   */
  signal(SIGPIPE, pass_over);
  signal(SIGXFSZ, pass_over);
  sigset_t caught;
  sigemptyset(&caught);
  sigaddset(&caught, SIGCHLD);
  if (service) {
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGINT);
  }
  if (sigprocmask(SIG_BLOCK, &caught, NULL) < 0) return false;
  server->epoll = epoll_create1(EPOLL_CLOEXEC);
  server->signals.fd = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
  return server->epoll >= 0 && server->signals.fd >= 0 && source_watch(server, &server->signals, EPOLLIN);
}

void server_listen_later(struct server *server) {
  if (source_watch(server, &server->listener, 0)) server->listen_at = server->lived_ms + LISTEN_PAUSE_MS;
}

static void listen_again(struct server *server) {
  if (server->listen_at == 0) return;
  if (server->lived_ms >= server->listen_at && source_watch(server, &server->listener, EPOLLIN)) {
    server->listen_at = 0;
  } else {
    server_due(server, server->listen_at > server->lived_ms ? server->listen_at : server->lived_ms + LISTEN_PAUSE_MS);
  }
}

/* Called in a forked child. Closes all descriptors except 0 to 2 and `fd`, which gets the number 3. */
static void job_detach(int fd) {
  sigset_t none;
  sigemptyset(&none);
  if (fd != 3) dup2(fd, 3);
  descriptors_close_from(4);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

struct outcome job_start(struct request *request, int fd, int (*work)(int fd, const void *argument),
                         const void *argument) {
  struct server *server = request->server;
  if (server->job_count >= JOBS_MAX) return refused(LIMIT, "too many long requests at a time");
  struct job *job = malloc(sizeof *job);
  if (!job) return system_error(ENOMEM);
  pid_t pid = fork();
  if (pid < 0) {
    int error = errno;
    free(job);
    return system_error(error);
  }
  if (pid == 0) {
    job_detach(fd);
    _exit(work(3, argument));
  }
  *job = (struct job){.next = server->jobs, .pid = pid, .pending = pending_of(request)};
  server->jobs = job;
  server->job_count++;
  return later();
}

static void job_settle(struct job *job, int status) {
  int error = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
  struct writer out = pending_writer(&job->pending, 0);
  pending_settle(&job->pending, &out, error == 0 ? answered() : system_error(error));
}

static bool job_reaped(struct server *server, pid_t pid, int status) {
  for (struct job **at = &server->jobs; *at; at = &(*at)->next) {
    if ((*at)->pid != pid) continue;
    struct job *job = *at;
    *at = job->next;
    server->job_count--;
    if (job->pending.link && job->pending.link->dead) job->pending.link = NULL;
    job_settle(job, status);
    free(job);
    return true;
  }
  return false;
}

/* Reaps one dead child. If the service watches deaths, calls its `dying` before the child is reaped. Returns false if
 * there is no dead child. */
static bool reap_one(struct server *server) {
  const struct service *service = server->service;
  siginfo_t dead = {.si_pid = -1};
  int status;
  if (service->watches_deaths && service->watches_deaths()) {
    dead.si_pid = 0;
    if (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) < 0 || dead.si_pid == 0) return false;
    service->dying(server, dead.si_pid);
  }
  pid_t pid = waitpid(dead.si_pid, &status, WNOHANG);
  if (pid <= 0) return false;
  if (!job_reaped(server, pid, status) && service->reaped) service->reaped(server, pid, status);
  return true;
}

static void reap(struct server *server) {
  int status;
  server->child_died = false;
  if (server->reap_all) {
    for (int i = 0; i < REAPED_PER_TURN; i++) {
      if (!reap_one(server)) return;
    }
    server->child_died = true;
    return;
  }
  struct job *next;
  for (struct job *job = server->jobs; job; job = next) {
    next = job->next;
    if (waitpid(job->pid, &status, WNOHANG) == job->pid) job_reaped(server, job->pid, status);
  }
}

/*
 * Kills jobs whose link is gone, because no peer is left to receive their results. A job's pid cannot be
 * reused until the job is reaped.
 */
static void jobs_end_linkless(struct server *server) {
  for (struct job *job = server->jobs; job; job = job->next) {
    if (!job->pending.link || !job->pending.link->dead) continue;
    job->pending.link = NULL;
    kill(job->pid, SIGKILL);
  }
}

static void live(struct server *server) {
  uint64_t now = milliseconds(CLOCK_MONOTONIC);
  uint64_t passed = now > server->clock_ms ? now - server->clock_ms : 0;
  server->clock_ms = now;
  server->lived_ms += passed < TURN_MAX_MS ? passed : TURN_MAX_MS;
}

static void sleep_until_due(struct server *server) {
  struct epoll_event events[EVENTS_PER_TURN];
  uint64_t sleep = TURN_SLEEP_MS;
  if (server->due_ms <= server->lived_ms || server->child_died) {
    sleep = 0;
  } else if (server->due_ms - server->lived_ms < sleep) {
    sleep = server->due_ms - server->lived_ms;
  }
  int count = epoll_wait(server->epoll, events, EVENTS_PER_TURN, (int)sleep);
  live(server);
  server->due_ms = UINT64_MAX;
  for (int i = 0; i < count; i++) {
    struct source *source = events[i].data.ptr;
    if (source->fd >= 0) source->ready(server, source, events[i].events);
  }
  if (count > 0) {
    server->busy_at = server->lived_ms;
    server->trimmed = false;
  }
}

/* Frees unused buffers of an idle keeper. */
static void trim(struct server *server) {
  if (server->trimmed || server->lived_ms < server->busy_at + IDLE_TRIM_MS) return;
  server->trimmed = true;
  for (int i = 0; i < server->links_end; i++) {
    struct link *link = server->links[i];
    if (!link || link->input_start != link->input_end) continue;
    free(link->input);
    link->input = NULL;
    link->input_room = link->input_start = link->input_end = 0;
  }
  malloc_trim(0);
}

void server_turn(struct server *server) {
  sleep_until_due(server);
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i]) link_pump(server->links[i]);
  }
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i]) server->file_service->tick(server->links[i]);
  }
  if (server->child_died) reap(server);
  if (server->service && server->service->tick) server->service->tick(server);
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i]) link_flush(server->links[i]);
    if (server->links[i]) link_check(server->links[i]);
  }
  listen_again(server);
  trim(server);
  jobs_end_linkless(server);
  if (server->service && server->service->free_closed) server->service->free_closed(server);
  links_free_closed(server);
}

void server_end(struct server *server) {
  for (int i = 0; i < server->links_end; i++) {
    if (server->links[i]) link_close(server->links[i]);
  }
  while (server->jobs) {
    struct job *job = server->jobs;
    server->jobs = job->next;
    kill(job->pid, SIGKILL);
    waitpid(job->pid, NULL, 0);
    free(job);
  }
  links_free_closed(server);
  source_close(&server->signals);
  source_close(&server->listener);
  if (server->epoll >= 0) close(server->epoll);
}
