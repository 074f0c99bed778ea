#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MARK_BASE (UINT64_C(1) << 52)
#define SERIAL_BITS 24
#define MARK_LINE "Max realtime timeout"
#define EXEC_VARIABLE "HOLDFAST_EXEC="
#define ENVIRON_MAX (4u * MIB)
#define TABLE_MAX 16384u
/* One slice of a hunt: the loop has pings to answer meanwhile. */
#define HUNT_CPU_NS 8000000

/* ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *skip_fields(const char *at, int count) {
  while (at && count-- > 0) {
    at = strchr(at, ' ');
    if (at) at++;
  }
  return at;
}

static uint64_t number_at(const char *at) {
  uint64_t value = 0;
  while (at && *at >= '0' && *at <= '9') value = value * 10 + (uint64_t)(*at++ - '0');
  return value;
}

/* The name may hold anything, closing parentheses and spaces included: the fields begin behind the last one. */
bool process_parse(const char *text, size_t size, struct process *process) {
  char copy[1024];
  *process = (struct process){0};
  if (size == 0 || size >= sizeof copy) return false;
  memcpy(copy, text, size);
  copy[size] = 0;
  const char *open = strchr(copy, '(');
  const char *close = strrchr(copy, ')');
  if (!open || !close || close < open || close[1] != ' ' || close[2] == 0 || close[3] != ' ') return false;
  size_t length = (size_t)(close - open - 1);
  if (length >= sizeof process->name) length = sizeof process->name - 1;
  memcpy(process->name, open + 1, length);
  process->pid = (pid_t)number_at(copy);
  process->state = close[2];
  const char *fields = close + 4;
  process->parent = (pid_t)number_at(fields);
  process->session = (pid_t)number_at(skip_fields(fields, 2));
  process->cpu_ticks = number_at(skip_fields(fields, 10)) + number_at(skip_fields(fields, 11));
  process->start_time = number_at(skip_fields(fields, 18));
  process->rss_pages = number_at(skip_fields(fields, 20));
  return process->pid > 0;
}

size_t process_file(pid_t pid, const char *name, char *text, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  size_t size = 0;
  ssize_t got;
  while (size < room && (got = read(fd, text + size, room - size)) > 0) size += (size_t)got;
  close(fd);
  return size;
}

static bool read_one(pid_t pid, struct process *process) {
  char text[1024];
  size_t size = process_file(pid, "stat", text, sizeof text - 1);
  return process_parse(text, size, process) && process->pid == pid;
}

/*
 * Calls `each` for the pids in /proc from `position` on, in ascending order, until it says no or there are no more.
 * They are fetched a few at a time, so that each is looked at soon after it was seen. The position is where to go on,
 * 0 after the last; -1 where /proc can't be read.
 */
static void each_pid(bool (*each)(pid_t pid, void *context), void *context, int64_t *position) {
  int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || lseek(fd, *position, SEEK_SET) < 0) {
    *position = -1;
    if (fd >= 0) close(fd);
    return;
  }
  _Alignas(struct dirent64) char buffer[512];
  bool more = true;
  while (more) {
    long size = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
    if (size <= 0) {
      *position = size < 0 ? -1 : 0;
      break;
    }
    for (long at = 0; more && at < size;) {
      struct dirent64 *entry = (struct dirent64 *)(buffer + at);
      at += entry->d_reclen;
      *position = entry->d_off;
      if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') more = each((pid_t)number_at(entry->d_name), context);
    }
  }
  close(fd);
}

static bool count_pid(pid_t pid, void *context) {
  (void)pid;
  return ++*(size_t *)context < TABLE_MAX;
}

size_t processes_count(void) {
  size_t count = 0;
  int64_t position = 0;
  each_pid(count_pid, &count, &position);
  return count;
}

static bool add_pid(pid_t pid, void *context) {
  struct process_table *table = context;
  if (table->count % 64 == 0) {
    struct process *grown = realloc(table->list, (table->count + 64) * sizeof *grown);
    if (!grown) return false;
    table->list = grown;
  }
  if (read_one(pid, &table->list[table->count])) table->count++;
  return table->count < TABLE_MAX;
}

bool processes_read(struct process_table *table) {
  int64_t position = 0;
  *table = (struct process_table){0};
  each_pid(add_pid, table, &position);
  if (position >= 0 && table->count > 0) return true;
  processes_free(table);
  return false;
}

void processes_free(struct process_table *table) {
  free(table->list);
  *table = (struct process_table){0};
}

/* ── Marks ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t mark_base;

void process_marks_init(void) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) < 0) random = (uint64_t)getpid();
  mark_base = MARK_BASE + ((random & EXEC_SERIAL_MAX) << SERIAL_BITS);
}

void process_mark(uint64_t serial) {
  uint64_t mark = mark_base + serial;
  struct rlimit limit = {.rlim_cur = mark, .rlim_max = mark};
  setrlimit(RLIMIT_RTTIME, &limit);
}

uint64_t process_serial(pid_t pid) {
  char text[2048];
  size_t size = process_file(pid, "limits", text, sizeof text - 1);
  text[size] = 0;
  const char *line = strstr(text, MARK_LINE);
  if (!line) return 0;
  line += strlen(MARK_LINE);
  while (*line == ' ') line++;
  line = strchr(line, ' ');
  while (line && *line == ' ') line++;
  uint64_t hard = number_at(line);
  return hard > mark_base && hard - mark_base <= EXEC_SERIAL_MAX ? hard - mark_base : 0;
}

static bool environ_exec_id(const char *text, size_t size, char id[EXEC_ID_MAX + 1]) {
  size_t prefix = strlen(EXEC_VARIABLE);
  for (size_t at = 0; at < size;) {
    const char *end = memchr(text + at, 0, size - at);
    size_t length = end ? (size_t)(end - text) - at : size - at;
    if (length > prefix && length - prefix <= EXEC_ID_MAX && memcmp(text + at, EXEC_VARIABLE, prefix) == 0) {
      memcpy(id, text + at + prefix, length - prefix);
      id[length - prefix] = 0;
      return true;
    }
    at += length + 1;
  }
  return false;
}

bool process_exec_id(pid_t pid, char id[EXEC_ID_MAX + 1]) {
  size_t room = 16u * KIB;
  char *text = malloc(room);
  size_t size = text ? process_file(pid, "environ", text, room) : 0;
  if (text && size == room) {
    char *grown = realloc(text, ENVIRON_MAX);
    if (grown) {
      text = grown;
      size = process_file(pid, "environ", text, ENVIRON_MAX);
    }
  }
  bool found = environ_exec_id(text, size, id);
  free(text);
  return found;
}

/* ── Trees ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct process *find(const struct process_table *table, pid_t pid) {
  size_t low = 0;
  size_t high = table->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (table->list[middle].pid < pid) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < table->count && table->list[low].pid == pid ? &table->list[low] : NULL;
}

/* PID 1 has everything below it; elsewhere only the real descendants, so that a neighbour's processes are safe. */
static void find_below(struct process_table *table) {
  pid_t self = getpid();
  bool more = true;
  while (more) {
    more = false;
    for (size_t i = 0; i < table->count; i++) {
      struct process *process = &table->list[i];
      if (process->below || process->pid == self) continue;
      const struct process *parent = find(table, process->parent);
      process->below = self == 1 || process->parent == self || (parent && parent->below);
      more |= process->below;
    }
  }
}

static bool is_marked(const struct process *process, pid_t leader, uint64_t serial, const char *id) {
  uint64_t marked = process_serial(process->pid);
  if (marked != 0) return marked == serial;
  char found[EXEC_ID_MAX + 1];
  return process->session == leader || (process_exec_id(process->pid, found) && strcmp(found, id) == 0);
}

static void choose_descendants(struct process_table *table) {
  bool more = true;
  while (more) {
    more = false;
    for (size_t i = 0; i < table->count; i++) {
      struct process *process = &table->list[i];
      const struct process *parent = process->below && !process->chosen ? find(table, process->parent) : NULL;
      if (!parent || !parent->chosen) continue;
      process->chosen = more = true;
    }
  }
}

static bool is_alive(const struct process *process) {
  return process->state != 'Z' && process->state != 'X';
}

/* By pidfd, and only if the pid still is the process that was looked at. */
static void kill_one(const struct process *process) {
  int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
  struct process again;
  bool same = read_one(process->pid, &again) && again.start_time == process->start_time;
  if (same && fd >= 0) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
  if (same && fd < 0 && errno != ESRCH) kill(process->pid, SIGKILL);
  if (fd >= 0) close(fd);
}

static int kill_chosen(struct process_table *table) {
  int alive = 0;
  for (size_t i = 0; i < table->count; i++) {
    if (!table->list[i].chosen || !is_alive(&table->list[i])) continue;
    alive++;
    kill_one(&table->list[i]);
  }
  processes_free(table);
  return alive;
}

struct hunt {
  uint64_t serial;
  int alive;
  int64_t began_ns;
};

/* Of this process: under a load that leaves it little, a slice is still large enough to get somewhere. */
static int64_t cpu_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

/* The pidfd is taken before the look: it then stands for what was looked at, or for nothing any more. */
static bool kill_marked(pid_t pid, void *context) {
  struct hunt *hunt = context;
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  struct process process;
  if (process_serial(pid) == hunt->serial && read_one(pid, &process) && is_alive(&process)) {
    hunt->alive++;
    if (fd >= 0) {
      syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    } else {
      kill(pid, SIGKILL);
    }
  }
  if (fd >= 0) close(fd);
  return cpu_ns() - hunt->began_ns < HUNT_CPU_NS;
}

int processes_hunt(uint64_t serial, int64_t *position) {
  struct hunt hunt = {.serial = serial, .began_ns = cpu_ns()};
  each_pid(kill_marked, &hunt, position);
  return hunt.alive;
}

int processes_kill(pid_t leader, uint64_t serial, const char *id) {
  struct process_table table;
  if (!processes_read(&table)) return -1;
  find_below(&table);
  for (size_t i = 0; i < table.count; i++) {
    struct process *process = &table.list[i];
    process->chosen = process->below && is_alive(process) && is_marked(process, leader, serial, id);
  }
  choose_descendants(&table);
  return kill_chosen(&table);
}

int processes_kill_all(void) {
  struct process_table table;
  if (!processes_read(&table)) return -1;
  find_below(&table);
  for (size_t i = 0; i < table.count; i++) table.list[i].chosen = table.list[i].below;
  return kill_chosen(&table);
}
