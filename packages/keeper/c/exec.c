#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proc.h"

#define BUCKETS 256u
#define END_TRIES 200

static struct {
  int journals;
  uint32_t known;
  uint32_t running;
  uint64_t serial;
  struct rlimit files;
  struct exec *buckets[BUCKETS];
  /* Running, or being killed. */
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
  process_marks_init();
  /* Commands get the limit that the keeper was given; the keeper itself needs several descriptors for each. */
  if (getrlimit(RLIMIT_NOFILE, &table.files) == 0) {
    struct rlimit raised = {.rlim_cur = table.files.rlim_max, .rlim_max = table.files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
  }
  return table.journals >= 0;
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
  for (uint32_t i = 0; serial && i < BUCKETS; i++) {
    for (struct exec *exec = table.buckets[i]; exec; exec = exec->next_same_hash) {
      if (exec->serial == serial) return exec;
    }
  }
  return NULL;
}

uint32_t execs_known(void) {
  return table.known;
}

static void activate(struct exec *exec) {
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

/* ── Output ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void note_journal(struct exec *exec) {
  if (exec->journal.full && exec->failure[0] == 0) exec->failure = "journal_full";
}

static bool pipes_are_done(const struct exec *exec) {
  return exec->stdout_pipe.source.fd < 0 && exec->stderr_pipe.source.fd < 0;
}

/* What can't be journaled is still read: a full disk must not stop the command. */
static void drain_into(struct exec_pipe *pipe, enum journal_kind kind, uint8_t *record, size_t room) {
  struct exec *exec = pipe->exec;
  for (int i = 0; i < DRAIN_TURN_READS && pipe->source.fd >= 0; i++) {
    ssize_t size = read(pipe->source.fd, record + JOURNAL_HEADER, room);
    if (size > 0) {
      if (!journal_append(&exec->journal, kind, record, (size_t)size)) note_journal(exec);
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      source_close(&pipe->source);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

static void drain(struct exec_pipe *pipe) {
  struct exec *exec = pipe->exec;
  enum journal_kind kind = pipe == &exec->stdout_pipe ? JOURNAL_STDOUT : JOURNAL_STDERR;
  uint8_t *record = malloc(JOURNAL_HEADER + JOURNAL_RECORD_MAX);
  uint8_t small[JOURNAL_HEADER + 512];
  drain_into(pipe, kind, record ? record : small, record ? JOURNAL_RECORD_MAX : sizeof small - JOURNAL_HEADER);
  free(record);
  if (exec_has_ended(exec) && pipes_are_done(exec)) journal_close(&exec->journal);
}

static void output_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  drain((struct exec_pipe *)source);
}

/* ── Stdin ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void input_drop(struct exec *exec) {
  source_close(&exec->stdin_pipe.source);
  free(exec->input);
  exec->input = NULL;
  exec->input_start = exec->input_end = 0;
}

/* Writes what the pipe takes of `data`; closes stdin where nobody reads it any more. */
static size_t input_write(struct exec *exec, const uint8_t *data, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t written = write(exec->stdin_pipe.source.fd, data + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN) input_drop(exec);
    if (written <= 0) break;
    done += (size_t)written;
  }
  return done;
}

static void input_settle(struct server *server, struct exec *exec) {
  if (exec->stdin_pipe.source.fd < 0) return;
  bool waiting = exec->input_start < exec->input_end;
  if (!waiting) {
    free(exec->input);
    exec->input = NULL;
    exec->input_start = exec->input_end = 0;
    if (exec->input_ends) {
      source_close(&exec->stdin_pipe.source);
      return;
    }
  }
  if (!source_watch(server, &exec->stdin_pipe.source, waiting ? EPOLLOUT : 0)) input_drop(exec);
}

static void input_ready(struct server *server, struct source *source, uint32_t events) {
  struct exec *exec = ((struct exec_pipe *)source)->exec;
  if (events & EPOLLERR) {
    input_drop(exec);
    return;
  }
  exec->input_start += input_write(exec, exec->input + exec->input_start, exec->input_end - exec->input_start);
  input_settle(server, exec);
}

size_t exec_input_room(const struct exec *exec) {
  if (exec->stdin_pipe.source.fd < 0) return SIZE_MAX;
  return STDIN_BUFFER_MAX - (exec->input_end - exec->input_start);
}

void exec_input(struct server *server, struct exec *exec, struct slice data) {
  if (exec->stdin_pipe.source.fd < 0 || exec->input_ends) {
    exec->input_accepted += data.size;
    return;
  }
  if (!exec->input) {
    size_t written = input_write(exec, data.data, data.size);
    exec->input_accepted += written;
    data.data += written;
    data.size -= written;
    if (exec->stdin_pipe.source.fd < 0) {
      exec->input_accepted += data.size;
      return;
    }
    if (data.size > 0) exec->input = malloc(STDIN_BUFFER_MAX);
    if (!exec->input) return;
  }
  size_t kept = exec->input_end - exec->input_start;
  size_t taken = data.size < STDIN_BUFFER_MAX - kept ? data.size : STDIN_BUFFER_MAX - kept;
  if (STDIN_BUFFER_MAX - exec->input_end < taken) {
    memmove(exec->input, exec->input + exec->input_start, kept);
    exec->input_start = 0;
    exec->input_end = kept;
  }
  memcpy(exec->input + exec->input_end, data.data, taken);
  exec->input_end += taken;
  exec->input_accepted += taken;
  input_settle(server, exec);
}

void exec_input_end(struct server *server, struct exec *exec) {
  exec->input_ends = true;
  input_settle(server, exec);
}

/* ── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

struct ends {
  int input[2];
  int output[2];
  int error[2];
  int status[2];
};

static void close_pair(int pair[2]) {
  if (pair[0] >= 0) close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
}

static void ends_close(struct ends *ends) {
  close_pair(ends->input);
  close_pair(ends->output);
  close_pair(ends->error);
  close_pair(ends->status);
}

static bool ends_open(struct ends *ends, bool with_stdin) {
  *ends = (struct ends){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
  if (pipe2(ends->output, O_CLOEXEC) == 0 && pipe2(ends->error, O_CLOEXEC) == 0 &&
      pipe2(ends->status, O_CLOEXEC) == 0 && (!with_stdin || pipe2(ends->input, O_CLOEXEC) == 0)) {
    fcntl(ends->output[0], F_SETFL, O_NONBLOCK);
    fcntl(ends->error[0], F_SETFL, O_NONBLOCK);
    fcntl(ends->status[0], F_SETFL, O_NONBLOCK);
    if (with_stdin) fcntl(ends->input[1], F_SETFL, O_NONBLOCK);
    return true;
  }
  int error = errno;
  ends_close(ends);
  errno = error;
  return false;
}

static pid_t fork_child(const struct exec *exec, const struct exec_order *order, const struct ends *ends) {
  pid_t keeper = getpid();
  pid_t pid = fork();
  if (pid != 0) return pid;
  child_run(&(struct child_order){
      .keeper = keeper,
      .id = exec->id,
      .serial = exec->serial,
      .argv = order->argv,
      .env = order->env,
      .cwd = order->cwd,
      .user = order->user,
      .stdin_fd = ends->input[0],
      .stdout_fd = ends->output[1],
      .stderr_fd = ends->error[1],
      .status_fd = ends->status[1],
      .files = table.files,
  });
}

/* The keeper's ends stay, the child's go. */
static bool adopt(struct server *server, struct exec *exec, struct ends *ends) {
  exec->stdout_pipe = (struct exec_pipe){{.fd = ends->output[0], .ready = output_ready}, exec};
  exec->stderr_pipe = (struct exec_pipe){{.fd = ends->error[0], .ready = output_ready}, exec};
  exec->stdin_pipe = (struct exec_pipe){{.fd = ends->input[1], .ready = input_ready}, exec};
  exec->status_fd = ends->status[0];
  ends->output[0] = ends->error[0] = ends->input[1] = ends->status[0] = -1;
  ends_close(ends);
  return source_watch(server, &exec->stdout_pipe.source, EPOLLIN) &&
         source_watch(server, &exec->stderr_pipe.source, EPOLLIN) &&
         (exec->stdin_pipe.source.fd < 0 || source_watch(server, &exec->stdin_pipe.source, 0));
}

static struct exec *exec_new(const struct exec_order *order) {
  struct exec *exec = calloc(1, sizeof *exec);
  if (!exec) return NULL;
  memcpy(exec->id, order->id.data, order->id.size);
  memcpy(exec->digest, order->digest.data, order->digest.size);
  exec->serial = ++table.serial & EXEC_SERIAL_MAX;
  exec->failure = "";
  exec->state = EXEC_ALIVE;
  exec->outcome = EXEC_EXITED;
  exec->exit_code = -1;
  exec->journal.fd = exec->status_fd = -1;
  exec->stdin_pipe.source.fd = exec->stdout_pipe.source.fd = exec->stderr_pipe.source.fd = -1;
  return exec;
}

static void exec_free(struct exec *exec) {
  source_close(&exec->stdout_pipe.source);
  source_close(&exec->stderr_pipe.source);
  input_drop(exec);
  journal_close(&exec->journal);
  if (exec->status_fd >= 0) close(exec->status_fd);
  free(exec);
}

static void insert(struct server *server, struct exec *exec, uint64_t timeout_ms) {
  struct exec **bucket = bucket_of(id_of(exec));
  exec->next_same_hash = *bucket;
  *bucket = exec;
  table.known++;
  table.running++;
  exec->started_at_ms = realtime_us() / 1000;
  if (timeout_ms > 0 && timeout_ms < UINT64_MAX - server->lived_ms) exec->timeout_at = server->lived_ms + timeout_ms;
  activate(exec);
}

struct outcome exec_start(struct server *server, const struct exec_order *order, struct exec **started) {
  if (table.running >= EXECS_RUNNING_MAX) return refused(LIMIT, "too many commands run at a time");
  if (table.known >= EXECS_KNOWN_MAX) return refused(LIMIT, "too many commands are known; forget some");
  struct exec *exec = exec_new(order);
  if (!exec) return system_error(ENOMEM);
  if (!journal_create(&exec->journal, table.journals, exec->id, order->journal_cap)) {
    int error = errno;
    exec_free(exec);
    return error == EEXIST ? refused(EXEC_CONFLICT, "a journal of this id exists") : system_error(error);
  }
  struct ends ends;
  int error = 0;
  if (!ends_open(&ends, order->with_stdin)) {
    error = errno;
  } else if ((exec->pid = fork_child(exec, order, &ends)) < 0) {
    error = errno;
    ends_close(&ends);
  }
  if (error != 0) {
    journal_remove(table.journals, exec->id);
    exec_free(exec);
    return system_error(error);
  }
  bool watched = adopt(server, exec, &ends);
  insert(server, exec, order->timeout_ms);
  /* Out of kernel memory: what can't be watched can't be kept. */
  if (!watched) exec_kill(server, exec, EXEC_CANCELLED);
  *started = exec;
  return answered();
}

/* ── End ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome) {
  if (exec->killing) return;
  /* A leader that was waited for before has its own outcome; only what it left behind is killed. */
  if (!exec->reaped) exec->outcome = outcome;
  exec->killing = true;
  exec->calm = false;
  exec->hunt_position = 0;
  exec->hunt_found = false;
  exec->kill_at = server->lived_ms;
  exec->kill_pause = KILL_PAUSE_MIN_MS;
  exec->kill_until = server->lived_ms + KILL_GIVE_UP_MS;
  activate(exec);
}

static void kill_over(struct server *server, struct exec *exec) {
  exec->killing = false;
  exec->drain_until = server->lived_ms + DRAIN_MS;
}

/* One slice of a look for what is alive of the tree; true where the look is complete and found nothing. */
static bool look_is_clean(struct exec *exec, bool *complete) {
  exec->hunt_found |= processes_hunt(exec->serial, &exec->hunt_position) > 0;
  *complete = exec->hunt_position <= 0;
  if (!*complete) return false;
  bool found = exec->hunt_found;
  exec->hunt_position = 0;
  exec->hunt_found = false;
  /* Without /proc the leader's end is all that can be seen. */
  return !found && processes_kill(exec->pid, exec->serial, exec->id) <= 0 && exec->reaped;
}

/*
 * It takes two looks that find nothing, with no death in between, before a tree counts as gone: what forks and ends
 * faster than a look takes is overlooked by it, but not without leaving its dead to PID 1.
 */
static void kill_step(struct server *server, struct exec *exec) {
  if (!exec->reaped) {
    kill(-exec->pid, SIGKILL);
    kill(exec->pid, SIGKILL);
  }
  bool complete;
  bool clean = look_is_clean(exec, &complete);
  if (clean && exec->calm) {
    kill_over(server, exec);
  } else if (server->lived_ms >= exec->kill_until) {
    if (exec->failure[0] == 0) exec->failure = "survivors";
    kill_over(server, exec);
  } else if (!complete) {
    exec->kill_at = server->lived_ms;
  } else {
    exec->calm = clean;
    exec->kill_at = server->lived_ms + (clean ? KILL_CALM_MS : exec->kill_pause);
    if (!clean && exec->kill_pause < KILL_PAUSE_MAX_MS) exec->kill_pause *= 2;
  }
}

/*
 * Any death is a reason to look again soon. Whose it was matters only to a tree that seems gone, and is asked only then:
 * a fork bomb dies faster than it can be read about.
 */
void execs_dying(struct server *server, pid_t pid) {
  bool asked = false;
  uint64_t serial = 0;
  for (struct exec *exec = table.active; exec; exec = exec->next_active) {
    if (!exec->killing) continue;
    if (exec->calm && !asked) {
      asked = true;
      serial = process_serial(pid);
    }
    if (exec->calm && serial != exec->serial) continue;
    exec->calm = false;
    exec->kill_pause = KILL_PAUSE_MIN_MS;
    exec->kill_at = server->lived_ms;
  }
}

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

static void announce(struct server *server, const struct exec *exec) {
  for (int i = 0; i < LINKS_MAX; i++) {
    struct link *link = server->links[i];
    if (!link || !link->greeted || link->closing || !link_has_room(link)) continue;
    struct writer out = writer_begin(0, TYPE_EXEC_END, 256);
    exec_write(exec, &out);
    link_send(link, writer_end(&out));
  }
}

static void finish(struct server *server, struct exec *exec) {
  exec->exit_at = exec->journal.end;
  exec->state = exec->outcome;
  exec->ended_at_ms = realtime_us() / 1000;
  table.running--;
  input_drop(exec);
  journal_exit(exec);
  note_journal(exec);
  if (pipes_are_done(exec)) journal_close(&exec->journal);
  announce(server, exec);
}

static void read_failure(struct exec *exec) {
  uint8_t byte = CHILD_RUNS;
  ssize_t size = read(exec->status_fd, &byte, 1);
  if (size == 1 && byte <= CHILD_USER) exec->failure = child_failure_name(byte);
  close(exec->status_fd);
  exec->status_fd = -1;
}

void execs_reaped(struct server *server, pid_t pid, int status) {
  for (struct exec *exec = table.active; exec; exec = exec->next_active) {
    if (exec->pid != pid || exec->reaped) continue;
    exec->reaped = true;
    exec->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    exec->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    exec->drain_until = server->lived_ms + DRAIN_MS;
    read_failure(exec);
    if (exec->stdout_pipe.source.fd >= 0) drain(&exec->stdout_pipe);
    if (exec->stderr_pipe.source.fd >= 0) drain(&exec->stderr_pipe);
  }
}

/* Takes an exec as far as it has come; false once there is nothing left to wait for. */
static bool advance(struct server *server, struct exec *exec) {
  uint64_t now = server->lived_ms;
  if (exec->timeout_at && !exec->reaped && !exec->killing && now >= exec->timeout_at) {
    exec_kill(server, exec, EXEC_TIMED_OUT);
  }
  if (exec->killing && now >= exec->kill_at) kill_step(server, exec);
  if (exec->killing) {
    server_due(server, exec->kill_at);
    return true;
  }
  if (exec_has_ended(exec)) return false;
  if (!exec->reaped && exec->outcome == EXEC_EXITED) {
    if (exec->timeout_at) server_due(server, exec->timeout_at);
    return true;
  }
  if (!pipes_are_done(exec) && now < exec->drain_until) {
    server_due(server, exec->drain_until);
    return true;
  }
  finish(server, exec);
  return false;
}

void execs_tick(struct server *server) {
  for (struct exec **at = &table.active; *at;) {
    struct exec *exec = *at;
    if (advance(server, exec)) {
      at = &exec->next_active;
      continue;
    }
    *at = exec->next_active;
    exec->active = false;
  }
}

void exec_forget(struct exec *exec) {
  struct exec **at = bucket_of(id_of(exec));
  while (*at != exec) at = &(*at)->next_same_hash;
  *at = exec->next_same_hash;
  table.known--;
  for (at = &table.active; *at; at = &(*at)->next_active) {
    if (*at != exec) continue;
    *at = exec->next_active;
    break;
  }
  journal_remove(table.journals, exec->id);
  source_close(&exec->stdout_pipe.source);
  source_close(&exec->stderr_pipe.source);
  exec->next_same_hash = table.forgotten;
  table.forgotten = exec;
}

void execs_bury(struct server *server) {
  (void)server;
  while (table.forgotten) {
    struct exec *exec = table.forgotten;
    table.forgotten = exec->next_same_hash;
    exec_free(exec);
  }
}

void execs_end(void) {
  for (int i = 0; i < END_TRIES; i++) {
    int alive = processes_kill_all();
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
  close(table.journals);
}
