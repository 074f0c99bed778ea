/*
 * Ending trees of processes. One look at all processes serves every exec that is being killed, so that many of them cost
 * no more than one. It is taken in slices, because the loop has pings to answer meanwhile.
 *
 * It takes two looks that find nothing, with no death in between, before a tree counts as gone: what forks and ends
 * faster than a look takes is overlooked by it, but not without leaving its dead to PID 1.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"
#include "mark.h"
#include "proc.h"

/* One slice of a look. */
#define SLICE_CPU_NS 8000000

static struct {
  bool under_way;
  /* Where among all processes it goes on. */
  int64_t position;
  /* Of the slice. */
  int64_t began_ns;
  /* Some processes could not be looked at: nobody's tree is known to be gone. */
  bool incomplete;
} look;

void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome) {
  if (exec->killing) return;
  /* A leader that was waited for before has its own outcome; only what it left behind is killed. */
  if (!exec->reaped) exec->outcome = outcome;
  exec->killing = true;
  exec->calm = false;
  exec->looked_for = false;
  exec->kill_at = server->lived_ms;
  exec->kill_pause = KILL_PAUSE_MIN_MS;
  exec->kill_until = server->lived_ms + KILL_GIVE_UP_MS;
  exec_activate(exec);
}

bool execs_watch_deaths(void) {
  for (const struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->killing) return true;
  }
  return false;
}

/*
 * Any death is a reason to look again soon. Whose it was matters only to a tree that seems gone, and is asked only then:
 * a fork bomb dies faster than it can be read about.
 */
void execs_dying(struct server *server, pid_t pid) {
  bool asked = false;
  uint64_t serial = 0;
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (!exec->killing) continue;
    if (exec->calm && !asked) {
      asked = true;
      serial = mark_of(pid);
    }
    if (exec->calm && serial != exec->serial) continue;
    exec->calm = false;
    exec->kill_pause = KILL_PAUSE_MIN_MS;
    exec->kill_at = server->lived_ms;
  }
}

/* ── By mark ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Of this process: under a load that leaves it little, a slice is still large enough to get somewhere. */
static int64_t cpu_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

static struct exec *hunted_by_serial(uint64_t serial) {
  struct exec *exec = exec_by_serial(serial);
  return exec && exec->killing ? exec : NULL;
}

/*
 * KILL as soon as it is seen, because a chain of short-lived forks runs away from anything slower. The pidfd is taken
 * before the look: it then stands for what was looked at, or for nothing any more.
 */
static bool kill_marked(pid_t pid, void *context) {
  (void)context;
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  struct exec *exec = hunted_by_serial(mark_of(pid));
  struct process process;
  if (exec && process_read(pid, &process) && process_is_alive(&process)) {
    exec->found = true;
    if (fd >= 0) {
      syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    } else {
      kill(pid, SIGKILL);
    }
  }
  if (fd >= 0) close(fd);
  return cpu_ns() - look.began_ns < SLICE_CPU_NS;
}

/* ── By everything else ────────────────────────────────────────────────────────────────────────────────────────── */

static struct exec *hunted_by_session(pid_t session) {
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->killing && exec->pid == session) return exec;
  }
  return NULL;
}

static struct exec *hunted_by_id(pid_t pid) {
  char id[EXEC_ID_MAX + 1];
  if (!process_exec_id(pid, id)) return NULL;
  struct exec *exec = exec_find((struct slice){(const uint8_t *)id, strlen(id)});
  return exec && exec->killing ? exec : NULL;
}

/* Another exec's mark counts more than a session or an environment, which anyone can make up. */
static struct exec *hunted(const struct process *process) {
  uint64_t serial = mark_of(process->pid);
  if (serial != 0) return hunted_by_serial(serial);
  struct exec *exec = hunted_by_session(process->session);
  return exec ? exec : hunted_by_id(process->pid);
}

static void own_descendants(struct process_table *table) {
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < table->count; i++) {
      struct process *process = &table->list[i];
      const struct process *parent = process->below && !process->owner ? processes_find(table, process->parent) : NULL;
      if (!parent || !parent->owner) continue;
      process->owner = parent->owner;
      more = true;
    }
  }
}

/* By pidfd, and only if the pid still is the process that was looked at. */
static void kill_one(const struct process *process) {
  int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
  struct process again;
  bool same = process_read(process->pid, &again) && again.start_time == process->start_time;
  if (same && fd >= 0) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
  if (same && fd < 0 && errno != ESRCH) kill(process->pid, SIGKILL);
  if (fd >= 0) close(fd);
}

/*
 * The slow and careful way, for what lost its mark where marks can't be sealed: all that are marked, in an exec's
 * session, have its id in their environment, or descend from one of these. Only descendants of the keeper are touched.
 */
static void look_carefully(void) {
  struct process_table table;
  if (!processes_read(&table)) return;
  processes_find_below(&table);
  for (size_t i = 0; i < table.count; i++) {
    struct process *process = &table.list[i];
    if (process->below && process_is_alive(process)) process->owner = hunted(process);
  }
  own_descendants(&table);
  for (size_t i = 0; i < table.count; i++) {
    struct process *process = &table.list[i];
    if (!process->owner || !process_is_alive(process)) continue;
    ((struct exec *)process->owner)->found = true;
    kill_one(process);
  }
  processes_free(&table);
}

int kill_all_below(void) {
  struct process_table table;
  int alive = 0;
  if (!processes_read(&table)) return -1;
  processes_find_below(&table);
  for (size_t i = 0; i < table.count; i++) {
    if (!table.list[i].below || !process_is_alive(&table.list[i])) continue;
    alive++;
    kill_one(&table.list[i]);
  }
  processes_free(&table);
  return alive;
}

/* ── Looks ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* For those whose time has come; who joins later gets the next one. */
static void look_begin(const struct server *server) {
  look.position = 0;
  look.incomplete = false;
  processes_overlooked();
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    exec->looked_for = exec->killing && server->lived_ms >= exec->kill_at;
    if (!exec->looked_for) continue;
    look.under_way = true;
    exec->found = false;
    if (exec->reaped) continue;
    kill(-exec->pid, SIGKILL);
    kill(exec->pid, SIGKILL);
  }
}

static bool any_unfound(void) {
  for (const struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->looked_for && !exec->found) return true;
  }
  return false;
}

static void kill_over(struct server *server, struct exec *exec) {
  exec->killing = false;
  exec->drain_until = server->lived_ms + DRAIN_MS;
}

static void conclude(struct server *server, struct exec *exec) {
  exec->looked_for = false;
  /* Without /proc the leader's end is all that can be seen. */
  bool clean = !exec->found && exec->reaped && !look.incomplete;
  if (clean && exec->calm) {
    kill_over(server, exec);
  } else if (server->lived_ms >= exec->kill_until) {
    /* The outcome of one that has ended stays as it was told. */
    if (!exec_has_ended(exec) && exec->failure[0] == 0) exec->failure = "survivors";
    kill_over(server, exec);
  } else {
    exec->calm = clean;
    exec->kill_at = server->lived_ms + (clean ? KILL_CALM_MS : exec->kill_pause);
    if (!clean && exec->kill_pause < KILL_PAUSE_MAX_MS) exec->kill_pause *= 2;
  }
}

void execs_kill(struct server *server) {
  if (!look.under_way) look_begin(server);
  if (look.under_way) {
    look.began_ns = cpu_ns();
    processes_each(kill_marked, NULL, &look.position);
    look.under_way = look.position > 0;
    if (!look.under_way && any_unfound()) look_carefully();
    look.incomplete |= processes_overlooked();
  }
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->looked_for && !look.under_way) conclude(server, exec);
    if (exec->killing) server_due(server, look.under_way ? server->lived_ms : exec->kill_at);
  }
}
