/*
 * Kills process trees, each of which consists of all processes of one exec. One scan of all processes serves every exec
 * that is being killed, so that many kills cost no more than one. A scan runs in slices, because the keeper's loop must
 * answer pings between the slices.
 *
 * The tree of an exec is gone if two scans in a row have found no process of the exec, and no process of the exec was
 * seen dying between the two scans. The second condition is needed because a scan can miss a process that forks and
 * exits faster than the scan proceeds. When such a process exits, PID 1 becomes the parent of its children. The keeper
 * is PID 1, so the kernel reports their deaths to the keeper.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "exec/exec.h"
#include "exec/exec_mark.h"
#include "exec/proc.h"

/* Maximum CPU time of one slice of a scan. */
#define SLICE_CPU_NS 8000000

static struct {
  bool in_progress;
  /* The position in /proc at which the next slice continues. */
  int64_t position;
  /* CPU time of the keeper at the start of the slice. */
  int64_t began_ns;
  /* Whether some processes could not be examined. If so, no tree can be declared gone. */
  bool incomplete;
} scan;

void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome) {
  if (exec->killing) return;
  /* If the leader was already reaped, the outcome stays as it is, and only the remaining processes are killed. */
  if (!exec->reaped) exec->outcome = outcome;
  exec->killing = true;
  exec->calm = false;
  exec->scanned = false;
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
 * Called for every dead child. Makes the next scan due at once for every exec that is being killed, with one exception:
 * if the last scan found no process of an exec, the next scan for that exec becomes due at once only if the dead
 * process belonged to it.
 *
 * The exec of the dead process is therefore looked up only if such an exec exists. Looking it up for every dead process
 * would be too slow, because the processes of a fork bomb die faster than the keeper can read /proc.
 */
void execs_dying(struct server *server, pid_t pid) {
  bool asked = false;
  uint64_t serial = 0;
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (!exec->killing) continue;
    if (exec->calm && !asked) {
      asked = true;
      serial = exec_mark_of(pid);
    }
    if (exec->calm && serial != exec->serial) continue;
    exec->calm = false;
    exec->kill_pause = KILL_PAUSE_MIN_MS;
    exec->kill_at = server->lived_ms;
  }
}

/* ── The fast scan: by mark ──────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Returns the CPU time that the keeper has used. Slices are measured in CPU time, so that each slice makes progress
 * even on a loaded machine.
 */
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
 * Kills a process as soon as it is found. A chain of short-lived forks outruns any method that first collects the
 * processes. The pidfd is opened before the process is examined, so it refers to the examined process or to none.
 */
static bool kill_marked(pid_t pid, void *context) {
  (void)context;
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  struct exec *exec = hunted_by_serial(exec_mark_of(pid));
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
  return cpu_ns() - scan.began_ns < SLICE_CPU_NS;
}

/* ── The careful scan: by mark, session, environment and parents ─────────────────────────────────────────────────── */

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

/*
 * Returns the exec to which the process belongs, if that exec is being killed; otherwise NULL. If the process has the
 * mark of an exec (see exec_mark.h), only the mark counts: any process can forge its session and environment.
 */
static struct exec *hunted(const struct process *process) {
  uint64_t serial = exec_mark_of(process->pid);
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

/* Kills the process by pidfd, but only if the pid still refers to the process that was examined. */
static void kill_one(const struct process *process) {
  int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
  struct process again;
  bool same = process_read(process->pid, &again) && again.start_time == process->start_time;
  if (same && fd >= 0) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
  if (same && fd < 0 && errno != ESRCH) kill(process->pid, SIGKILL);
  if (fd >= 0) close(fd);
}

/*
 * The slow and careful scan. It also finds processes without the mark of their exec (see exec_mark.h): on kernels
 * without system call filters a process can remove its mark. For every exec that is being killed it kills each process
 * that has the exec's mark, is in the exec's session, has the exec's id in its environment, or descends from such a
 * process. Only descendants of the keeper are killed.
 */
static void scan_carefully(void) {
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

/* ── Scans ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Starts a scan for the execs for which one is due. Other execs wait for the next scan. */
static void scan_begin(const struct server *server) {
  scan.position = 0;
  scan.incomplete = false;
  processes_overlooked();
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    exec->scanned = exec->killing && server->lived_ms >= exec->kill_at;
    if (!exec->scanned) continue;
    scan.in_progress = true;
    exec->found = false;
    if (exec->reaped) continue;
    kill(-exec->pid, SIGKILL);
    kill(exec->pid, SIGKILL);
  }
}

static bool any_unfound(void) {
  for (const struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->scanned && !exec->found) return true;
  }
  return false;
}

static void kill_over(struct server *server, struct exec *exec) {
  exec->killing = false;
  exec->drain_until = server->lived_ms + DRAIN_MS;
}

static void conclude(struct server *server, struct exec *exec) {
  exec->scanned = false;
  /*
   * If /proc cannot be read at all, for example because it is not mounted, no process is ever found. The exec then
   * counts as gone once its leader was reaped.
   */
  bool clean = !exec->found && exec->reaped && !scan.incomplete;
  if (clean && exec->calm) {
    kill_over(server, exec);
  } else if (server->lived_ms >= exec->kill_until) {
    /* If the exec has ended, its outcome was announced and must not change any more. */
    if (!exec_has_ended(exec) && exec->failure[0] == 0) exec->failure = "survivors";
    kill_over(server, exec);
  } else {
    exec->calm = clean;
    exec->kill_at = server->lived_ms + (clean ? KILL_CALM_MS : exec->kill_pause);
    if (!clean && exec->kill_pause < KILL_PAUSE_MAX_MS) exec->kill_pause *= 2;
  }
}

void execs_kill(struct server *server) {
  if (!scan.in_progress) scan_begin(server);
  if (scan.in_progress) {
    scan.began_ns = cpu_ns();
    processes_each(kill_marked, NULL, &scan.position);
    scan.in_progress = scan.position > 0;
    if (!scan.in_progress && any_unfound()) scan_carefully();
    scan.incomplete |= processes_overlooked();
  }
  for (struct exec *exec = execs_active(); exec; exec = exec->next_active) {
    if (exec->scanned && !scan.in_progress) conclude(server, exec);
    if (exec->killing) server_due(server, scan.in_progress ? server->lived_ms : exec->kill_at);
  }
}
