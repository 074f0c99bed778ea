#include "exec/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec/child_pipes.h"
#include "exec/exec_mark.h"
#include "exec/drain.h"

#define BUCKETS 256u
#define END_TRIES 200

static struct {
  int journals;
  uint32_t known;
  uint32_t running;
  uint64_t serial;
  uint64_t events;
  struct rlimit files;
  struct exec *buckets[BUCKETS];
  struct exec *serials[BUCKETS];
  /* Execs that run, are being killed, wait for a reader, or have a leader that is not reaped yet. */
  struct exec *active;
  struct exec *forgotten;
} table = {.journals = -1};

/* ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────── */

bool execs_init(const char *control) {
  int directory = open(control, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  if (mkdirat(directory, "journals", 0700) == 0 || errno == EEXIST) {
    table.journals = openat(directory, "journals", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }
  int error = errno;
  close(directory);
  errno = error;
  if (table.journals < 0 || !child_init()) return false;
  exec_marks_init();
  /*
   * Commands get the descriptor limit with which the keeper was started. The keeper raises its own limit,
   * because it needs several descriptors per command.
   */
  if (getrlimit(RLIMIT_NOFILE, &table.files) == 0) {
    struct rlimit raised = {.rlim_cur = table.files.rlim_max, .rlim_max = table.files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
  }
  return true;
}

static struct exec **bucket_of(struct slice id) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < id.size; i++) hash = (hash ^ id.data[i]) * 16777619u;
  return &table.buckets[hash % BUCKETS];
}

static struct slice id_of(const struct exec *exec) {
  return (struct slice){(const uint8_t *)exec->id, strlen(exec->id)};
}

struct exec *exec_find(struct slice id) {
  for (struct exec *exec = *bucket_of(id); exec; exec = exec->next_same_hash) {
    if (strlen(exec->id) == id.size && memcmp(exec->id, id.data, id.size) == 0) return exec;
  }
  return NULL;
}

void execs_each(void (*each)(struct exec *exec, void *context), void *context) {
  for (uint32_t i = 0; i < BUCKETS; i++) {
    for (struct exec *exec = table.buckets[i]; exec; exec = exec->next_same_hash) each(exec, context);
  }
}

struct exec *exec_by_serial(uint64_t serial) {
  struct exec *exec = serial ? table.serials[serial % BUCKETS] : NULL;
  while (exec && exec->serial != serial) exec = exec->next_same_serial;
  return exec;
}

struct exec *execs_active(void) {
  return table.active;
}

uint32_t execs_known(void) {
  return table.known;
}

void exec_activate(struct exec *exec) {
  if (exec->active) return;
  exec->active = true;
  exec->next_active = table.active;
  table.active = exec;
}

bool exec_has_ended(const struct exec *exec) {
  return exec->state != EXEC_ALIVE;
}

void exec_write(const struct exec *exec, struct writer *out) {
  write_str(out, exec->id);
  write_u8(out, (uint8_t)exec->state);
  write_u32(out, (uint32_t)exec->pid);
  write_u32(out, (uint32_t)exec->exit_code);
  write_u32(out, (uint32_t)exec->signal);
  write_str(out, exec->failure);
  write_u64(out, exec->started_at_ms);
  write_u64(out, exec->ended_at_ms);
  write_u64(out, exec->journal.floor);
  write_u64(out, exec_has_ended(exec) ? exec->exit_at : exec->journal.end);
  write_str(out, exec->digest);
}

enum journal_read exec_read(const struct exec *exec, uint64_t cursor, uint32_t max, struct writer *out,
                            uint64_t *next) {
  return journal_read(&exec->journal, table.journals, exec->id, cursor, max, out, next);
}

/* ── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static pid_t start_child(const struct exec *exec, const struct exec_order *order, const struct child_pipes *pipes) {
  return child_start(&(struct child_order){
      .id = exec->id,
      .serial = exec->serial,
      .argv = order->argv,
      .env = order->env,
      .cwd = order->cwd,
      .user = order->user,
      .terminal = exec->terminal,
      .stdin_fd = pipes->input.command,
      .stdout_fd = pipes->output.command,
      .stderr_fd = pipes->error.command,
      .status_fd = pipes->status.command,
      .files = table.files,
  });
}

/* Takes over the keeper's ends of the pipes and closes the command's ends. */
static bool adopt(struct server *server, struct exec *exec, struct child_pipes *pipes) {
  struct child_pipes kept = *pipes;
  pipes->input.keeper = pipes->output.keeper = pipes->error.keeper = pipes->status.keeper = -1;
  if (exec->terminal) pipes->output.command = -1;
  child_pipes_close(pipes);
  if (exec->terminal) exec->terminal_fd = kept.output.command;
  exec->status_fd = kept.status.keeper;
  bool watched = exec_output_open(server, exec, kept.output.keeper, kept.error.keeper);
  return exec_input_open(server, exec, kept.input.keeper) && watched;
}

static struct exec *exec_new(const struct exec_order *order) {
  struct exec *exec = calloc(1, sizeof *exec);
  if (!exec) return NULL;
  memcpy(exec->id, order->id.data, order->id.size);
  memcpy(exec->digest, order->digest.data, order->digest.size);
  exec->serial = table.serial = table.serial % EXEC_SERIAL_MAX + 1;
  exec->failure = "";
  exec->state = EXEC_ALIVE;
  exec->outcome = EXEC_EXITED;
  exec->exit_code = -1;
  exec->terminal = order->terminal.cols > 0;
  exec->input_last = -1;
  exec->journal.fd = exec->status_fd = exec->terminal_fd = -1;
  exec->stdin_pipe.source.fd = exec->stdout_pipe.source.fd = exec->stderr_pipe.source.fd = -1;
  return exec;
}

static void close_own(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void exec_free(struct exec *exec) {
  exec_output_close(exec);
  exec_input_drop(exec);
  journal_close(&exec->journal);
  close_own(&exec->status_fd);
  close_own(&exec->terminal_fd);
  free(exec);
}

static void insert(struct server *server, struct exec *exec, uint64_t timeout_ms) {
  struct exec **bucket = bucket_of(id_of(exec));
  exec->next_same_hash = *bucket;
  *bucket = exec;
  bucket = &table.serials[exec->serial % BUCKETS];
  exec->next_same_serial = *bucket;
  *bucket = exec;
  table.known++;
  table.running++;
  exec->started_at_ms = realtime_us() / 1000;
  exec_timeout_begin(server, exec, timeout_ms);
  exec_activate(exec);
}

/*
 * Opens the pipes of a command, unless this would use the descriptors that are reserved for links, files and /proc.
 * The kernel assigns the lowest free number, so the number of the newest descriptor shows how many descriptors are
 * left.
 */
static bool try_pipes(const struct exec *exec, const struct exec_order *order, struct child_pipes *pipes) {
  bool opened = exec->terminal ? child_pipes_open_terminal(pipes, order->terminal)
                               : child_pipes_open(pipes, order->with_stdin);
  if (!opened || (rlim_t)pipes->status.command + DESCRIPTORS_RESERVED < table.files.rlim_max) return opened;
  child_pipes_close(pipes);
  errno = EMFILE;
  return false;
}

/* Opens the pipes of a command. If descriptors run out, closes drained outputs of forgotten execs to free some. */
static bool open_pipes(const struct exec *exec, const struct exec_order *order, struct child_pipes *pipes) {
  bool opened;
  do {
    opened = try_pipes(exec, order, pipes);
  } while (!opened && errno == EMFILE && drain_close_oldest());
  return opened;
}

static struct outcome start_refused(const struct exec *exec, int error) {
  if (error == EMFILE) return refused(LIMIT, "too many descriptors are open");
  if (error == ENOSPC && exec->terminal) return refused(LIMIT, "too many terminals are open");
  return system_error(error);
}

struct outcome exec_start(struct server *server, const struct exec_order *order, struct exec **started) {
  if (table.running >= EXECS_RUNNING_MAX) return refused(LIMIT, "too many commands run at a time");
  if (table.known >= EXECS_KNOWN_MAX) return refused(LIMIT, "too many commands are known; forget some");
  struct exec *exec = exec_new(order);
  if (!exec) return system_error(ENOMEM);
  struct child_pipes pipes;
  struct outcome outcome = answered();
  if (!journal_create(&exec->journal, table.journals, exec->id, order->journal_cap)) {
    outcome = errno == EEXIST ? refused(EXEC_CONFLICT, "a journal of this id exists") : system_error(errno);
  } else if (!open_pipes(exec, order, &pipes)) {
    outcome = start_refused(exec, errno);
    journal_remove(table.journals, exec->id);
  } else if ((exec->pid = start_child(exec, order, &pipes)) < 0) {
    outcome = system_error(errno);
    child_pipes_close(&pipes);
    journal_remove(table.journals, exec->id);
  }
  if (outcome.kind != ANSWER) {
    exec_free(exec);
    return outcome;
  }
  bool watched = adopt(server, exec, &pipes);
  insert(server, exec, order->timeout_ms);
  /* If the kernel has no memory to watch the pipes, the command is killed, because its output could not be read. */
  if (!watched) exec_kill(server, exec, EXEC_CANCELLED);
  *started = exec;
  return outcome;
}

/* ── End ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void journal_exit(struct exec *exec) {
  uint8_t record[JOURNAL_HEADER + 512];
  struct writer out = writer_begin(0, 0, sizeof record);
  exec_write(exec, &out);
  size_t size = writer_size(&out) - FRAME_HEADER;
  if (!out.failed && size <= sizeof record - JOURNAL_HEADER) {
    memcpy(record + JOURNAL_HEADER, out.chunk->data + FRAME_HEADER, size);
    journal_append(&exec->journal, JOURNAL_EXIT, record, size);
  }
  writer_drop(&out);
}

static void announce_to(struct link *link, uint16_t type, const struct exec *exec) {
  struct writer out = writer_begin(0, type, 256);
  exec_write(exec, &out);
  link_send(link, writer_end(&out));
}

/*
 * Sends an event about an exec to every link. If a link's queue has no room, the event is sent to that link once there
 * is room.
 */
static void announce(struct server *server, uint16_t type, const struct exec *exec) {
  for (int i = 0; i < server->links_end; i++) {
    struct link *link = server->links[i];
    if (!link || !link->greeted || link->closing || link->events_owed) continue;
    if (link_has_room(link)) {
      announce_to(link, type, exec);
    } else {
      link->events_owed = table.events;
    }
  }
}

static void announce_if_owed(struct exec *exec, void *context) {
  struct link *link = context;
  if (exec->begin_number >= link->events_owed) announce_to(link, TYPE_EXEC_BEGIN, exec);
  if (exec->end_number >= link->events_owed) announce_to(link, TYPE_EXEC_END, exec);
}

/*
 * Sends to each link the events that were postponed because its queue was full, once the queue has room again. All
 * postponed events of a link are sent at once: their number is limited by the number of known execs.
 */
static void announce_owed(struct server *server) {
  for (int i = 0; i < server->links_end; i++) {
    struct link *link = server->links[i];
    if (!link || !link->events_owed || !link_has_room(link)) continue;
    execs_each(announce_if_owed, link);
    link->events_owed = 0;
  }
}

void exec_announce_begin(struct server *server, struct exec *exec) {
  exec->begin_number = ++table.events;
  announce(server, TYPE_EXEC_BEGIN, exec);
}

static void finish(struct server *server, struct exec *exec) {
  /*
   * If the command waits for a reader, its pipes may still contain output. It is journaled now, because the exit record
   * must come after the output.
   */
  if (exec->waits_for_reader) exec_output_drain(server, exec);
  exec->exit_at = exec->journal.end;
  exec->state = exec->outcome;
  exec->ended_at_ms = realtime_us() / 1000;
  exec->end_number = ++table.events;
  table.running--;
  exec_input_drop(exec);
  journal_exit(exec);
  exec_output_note(exec);
  if (exec_output_done(exec)) journal_close(&exec->journal);
  announce(server, TYPE_EXEC_END, exec);
}

static void read_failure(struct exec *exec) {
  uint8_t byte = CHILD_RUNS;
  ssize_t size = read(exec->status_fd, &byte, 1);
  if (size == 1 && byte <= CHILD_USER) exec->failure = child_failure_name(byte);
  close_own(&exec->status_fd);
}

void execs_reaped(struct server *server, pid_t pid, int status) {
  for (struct exec *exec = table.active; exec; exec = exec->next_active) {
    if (exec->pid != pid || exec->reaped) continue;
    exec->reaped = true;
    close_own(&exec->terminal_fd);
    if (exec_has_ended(exec)) continue;
    exec->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    exec->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    exec->drain_until = server->lived_ms + DRAIN_MS;
    read_failure(exec);
    exec_output_drain(server, exec);
  }
}

/*
 * Ends an exec if all conditions for its end are met. Returns whether the exec must stay in the list of active execs,
 * because its end, its leader or a reader is still waited for.
 */
static bool advance(struct server *server, struct exec *exec) {
  if (exec->killing) return true;
  /*
   * The exec may end although its leader could not be killed. The exec then stays active until the leader is reaped;
   * until then the leader's pid cannot be reused.
   */
  if (exec_has_ended(exec)) return !exec->reaped || exec->waits_for_reader;
  if (!exec->reaped && exec->outcome == EXEC_EXITED) {
    exec_timeout_schedule(server, exec);
    return true;
  }
  if (!exec_output_done(exec) && server->lived_ms < exec->drain_until) {
    server_due(server, exec->drain_until);
    return true;
  }
  finish(server, exec);
  return !exec->reaped || exec->waits_for_reader;
}

void execs_tick(struct server *server) {
  for (struct exec *exec = table.active; exec; exec = exec->next_active) exec_timeout_enforce(server, exec);
  execs_kill(server);
  for (struct exec **at = &table.active; *at;) {
    struct exec *exec = *at;
    exec_output_advance(server, exec);
    if (advance(server, exec)) {
      at = &exec->next_active;
      continue;
    }
    *at = exec->next_active;
    exec->active = false;
  }
  announce_owed(server);
}

void exec_forget(struct server *server, struct exec *exec, bool keep_journal) {
  struct exec **at = bucket_of(id_of(exec));
  while (*at != exec) at = &(*at)->next_same_hash;
  *at = exec->next_same_hash;
  for (at = &table.serials[exec->serial % BUCKETS]; *at != exec;) at = &(*at)->next_same_serial;
  *at = exec->next_same_serial;
  table.known--;
  for (at = &table.active; *at; at = &(*at)->next_active) {
    if (*at != exec) continue;
    *at = exec->next_active;
    break;
  }
  if (!keep_journal) journal_remove(table.journals, exec->id);
  exec_output_leave(server, exec);
  exec->next_same_hash = table.forgotten;
  table.forgotten = exec;
}

bool exec_forget_journal(struct slice id) {
  char name[EXEC_ID_MAX + 1] = {0};
  struct stat stat;
  memcpy(name, id.data, id.size);
  if (fstatat(table.journals, name, &stat, AT_SYMLINK_NOFOLLOW) < 0) return false;
  journal_remove(table.journals, name);
  return true;
}

void execs_free_forgotten(struct server *server) {
  (void)server;
  drains_free_closed();
  while (table.forgotten) {
    struct exec *exec = table.forgotten;
    table.forgotten = exec->next_same_hash;
    exec_free(exec);
  }
}

void execs_end(void) {
  for (int i = 0; i < END_TRIES; i++) {
    int alive = kill_all_below();
    if (alive < 0) {
      for (struct exec *exec = table.active; exec; exec = exec->next_active) {
        if (!exec->reaped) kill(-exec->pid, SIGKILL);
      }
    }
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    if (alive == 0 || (alive < 0 && waitpid(-1, NULL, WNOHANG) < 0)) break;
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  }
  for (uint32_t i = 0; i < BUCKETS; i++) {
    while (table.buckets[i]) {
      struct exec *exec = table.buckets[i];
      table.buckets[i] = exec->next_same_hash;
      exec_free(exec);
    }
  }
  table.active = NULL;
  drains_end();
  close(table.journals);
}
