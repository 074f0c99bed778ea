/* Process information from /proc. */
#ifndef HOLDFAST_PROC_H
#define HOLDFAST_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "loop/limits.h"

struct process {
  pid_t pid;
  pid_t parent;
  pid_t session;
  char state;
  uint64_t threads;
  uint64_t cpu_ticks;
  uint64_t start_time;
  uint64_t rss_pages;
  char name[64];
  /* Whether the process descends from the keeper. */
  bool below;
  /* The exec to which the process belongs, as a scan has found; otherwise NULL. Only scans use this field. */
  void *owner;
};

struct process_table {
  struct process *list;
  size_t count;
};

/* Parses the text of /proc/PID/stat. */
bool process_parse(const char *text, size_t size, struct process *process);
bool process_read(pid_t pid, struct process *process);
bool process_is_alive(const struct process *process);
/* Reads a small file of /proc/PID. Returns its size; 0 on failure. */
size_t process_file(pid_t pid, const char *name, char *text, size_t room);
/* Returns the decimal number at the start of a text; 0 if there is none. */
uint64_t process_number(const char *text);
/* Reads the exec id from a process's environment. Returns false if there is none. */
bool process_exec_id(pid_t pid, char id[EXEC_ID_MAX + 1]);

/*
 * Calls `each` for the pids in /proc in ascending order, beginning at `position`. Stops when `each` returns false or
 * no pid is left. Pids are listed a few at a time, so that each is examined soon after it was listed. Sets `position`
 * to the place where the next call continues: 0 after the last pid, -1 if /proc cannot be read.
 */
void processes_each(bool (*each)(pid_t pid, void *context), void *context, int64_t *position);
size_t processes_count(void);
/* Returns whether, since the last call, any process could not be examined for lack of descriptors or memory. */
bool processes_overlooked(void);

/* Lists all processes, sorted by pid. Returns false if /proc cannot be read. */
bool processes_read(struct process_table *table);
void processes_free(struct process_table *table);
struct process *processes_find(const struct process_table *table, pid_t pid);
/*
 * Sets `below` for the descendants of the keeper. If the keeper is PID 1, all processes are its descendants. Otherwise
 * only its real descendants get `below`, so that other processes of the machine are never killed.
 */
void processes_find_below(struct process_table *table);

#endif
