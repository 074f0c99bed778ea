/* What /proc says about processes. */
#ifndef HOLDFAST_PROC_H
#define HOLDFAST_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "limits.h"

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
  /* Descends from the keeper. */
  bool below;
  /* Whose it was found to be; for who looks at the table. */
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
/* Reads a small file of /proc/PID: its size, 0 on failure. */
size_t process_file(pid_t pid, const char *name, char *text, size_t room);
/* The decimal number at the head of a text; 0 where there is none. */
uint64_t process_number(const char *text);
/* The exec id in a process's environment; false where there is none. */
bool process_exec_id(pid_t pid, char id[EXEC_ID_MAX + 1]);

/*
 * Calls `each` for the pids in /proc from `position` on, in ascending order, until it says no or there are no more.
 * They are fetched a few at a time, so that each is looked at soon after it was seen. The position is where to go on,
 * 0 after the last; -1 where /proc can't be read.
 */
void processes_each(bool (*each)(pid_t pid, void *context), void *context, int64_t *position);
size_t processes_count(void);
/* Whether, since it was asked last, something could not be looked at for want of descriptors or memory. */
bool processes_overlooked(void);

/* All processes, by pid. False where /proc can't be read. */
bool processes_read(struct process_table *table);
void processes_free(struct process_table *table);
struct process *processes_find(const struct process_table *table, pid_t pid);
/* PID 1 has everything below it; elsewhere only the real descendants, so that a neighbour's processes are safe. */
void processes_find_below(struct process_table *table);

#endif
