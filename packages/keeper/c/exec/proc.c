#include "exec/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXEC_VARIABLE "HOLDFAST_EXEC="
#define ENVIRON_MAX (4u * MIB)
#define TABLE_MAX 16384u

/* ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *skip_fields(const char *at, int count) {
  while (at && count-- > 0) {
    at = strchr(at, ' ');
    if (at) at++;
  }
  return at;
}

uint64_t process_number(const char *text) {
  uint64_t value = 0;
  while (text && *text >= '0' && *text <= '9') value = value * 10 + (uint64_t)(*text++ - '0');
  return value;
}

/*
 * Parses a line of /proc/PID/stat. The process name in it may contain closing parentheses and spaces, so the fields
 * begin after the last parenthesis.
 */
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
  process->pid = (pid_t)process_number(copy);
  process->state = close[2];
  const char *fields = close + 4;
  process->parent = (pid_t)process_number(fields);
  process->session = (pid_t)process_number(skip_fields(fields, 2));
  process->cpu_ticks = process_number(skip_fields(fields, 10)) + process_number(skip_fields(fields, 11));
  process->threads = process_number(skip_fields(fields, 16));
  process->start_time = process_number(skip_fields(fields, 18));
  process->rss_pages = process_number(skip_fields(fields, 20));
  return process->pid > 0;
}

static bool overlooked;

bool processes_overlooked(void) {
  bool answer = overlooked;
  overlooked = false;
  return answer;
}

/*
 * Opens a path in /proc. If that fails for lack of descriptors or memory, the process may exist nevertheless, and
 * processes_overlooked reports that it could not be examined.
 */
static int open_proc(const char *path, int flags) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) overlooked = true;
  return fd;
}

size_t process_file(pid_t pid, const char *name, char *text, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
  int fd = open_proc(path, 0);
  if (fd < 0) return 0;
  size_t size = 0;
  ssize_t got;
  while (size < room && (got = read(fd, text + size, room - size)) > 0) size += (size_t)got;
  close(fd);
  return size;
}

bool process_read(pid_t pid, struct process *process) {
  char text[1024];
  size_t size = process_file(pid, "stat", text, sizeof text - 1);
  return process_parse(text, size, process) && process->pid == pid;
}

/*
 * Returns whether any thread of the process is alive. The state in /proc/PID/stat is that of the first
 * thread, which may have ended while others run.
 */
bool process_is_alive(const struct process *process) {
  return (process->state != 'Z' && process->state != 'X') || process->threads > 1;
}

void processes_each(bool (*each)(pid_t pid, void *context), void *context, int64_t *position) {
  int fd = open_proc("/proc", O_DIRECTORY);
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
      if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') more = each((pid_t)process_number(entry->d_name), context);
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
  processes_each(count_pid, &count, &position);
  return count;
}

static bool add_pid(pid_t pid, void *context) {
  struct process_table *table = context;
  if (table->count % 64 == 0) {
    struct process *grown = realloc(table->list, (table->count + 64) * sizeof *grown);
    if (!grown) return false;
    table->list = grown;
  }
  if (process_read(pid, &table->list[table->count])) table->count++;
  return table->count < TABLE_MAX;
}

bool processes_read(struct process_table *table) {
  int64_t position = 0;
  *table = (struct process_table){0};
  processes_each(add_pid, table, &position);
  if (position >= 0 && table->count > 0) return true;
  processes_free(table);
  return false;
}

void processes_free(struct process_table *table) {
  free(table->list);
  *table = (struct process_table){0};
}

/* ── Environment ───────────────────────────────────────────────────────────────────────────────────────────────── */

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

/* ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────── */

struct process *processes_find(const struct process_table *table, pid_t pid) {
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

void processes_find_below(struct process_table *table) {
  pid_t self = getpid();
  bool more = true;
  while (more) {
    more = false;
    for (size_t i = 0; i < table->count; i++) {
      struct process *process = &table->list[i];
      if (process->below || process->pid == self) continue;
      const struct process *parent = processes_find(table, process->parent);
      process->below = self == 1 || process->parent == self || (parent && parent->below);
      more |= process->below;
    }
  }
}
