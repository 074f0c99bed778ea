/* What /proc says about the processes below the keeper, and ending all that belong to one exec. */
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
  uint64_t cpu_ticks;
  uint64_t start_time;
  uint64_t rss_pages;
  char name[64];
  /* Descends from the keeper. */
  bool below;
  /* Belongs to the exec in question. */
  bool chosen;
};

struct process_table {
  struct process *list;
  size_t count;
};

/* Parses the text of /proc/PID/stat. */
bool process_parse(const char *text, size_t size, struct process *process);
/* All processes, by pid. False where /proc can't be read. */
bool processes_read(struct process_table *table);
void processes_free(struct process_table *table);
size_t processes_count(void);

/*
 * The mark of an exec that its processes can't lose by accident: the limit on realtime CPU time, inherited by every
 * child whatever becomes of its environment, session and parents. It is far too high to limit anything. A random part
 * tells this keeper's marks from any other's.
 */
void process_marks_init(void);
void process_mark(uint64_t serial);
/* The serial of the exec that a process is marked with; 0 where there is none. */
uint64_t process_serial(pid_t pid);
/* The exec id in a process's environment; false where there is none. */
bool process_exec_id(pid_t pid, char id[EXEC_ID_MAX + 1]);

/* Reads a small file of /proc/PID: its size, 0 on failure. */
size_t process_file(pid_t pid, const char *name, char *text, size_t room);

/*
 * Sends KILL to processes with an exec's mark, each as soon as it is seen, because a chain of short-lived forks runs
 * away from anything slower. Looks at a slice of all processes from `position` on, which then says where to go on: 0
 * where the end was reached, -1 where nothing can be seen. Returns how many were alive. What forks and ends within the
 * look can be overlooked: its death then tells of it.
 */
int processes_hunt(uint64_t serial, int64_t *position);

/*
 * The slow and careful way, for what lost its mark: KILL to all that are marked, in the exec's session, have its id in
 * their environment, or descend from one of these. Only descendants of the keeper are touched. Returns how many were
 * alive, or -1 where that can't be known.
 */
int processes_kill(pid_t leader, uint64_t serial, const char *id);
/* The same for everything below the keeper. */
int processes_kill_all(void);

#endif
