/*
 * Execs and how they end.
 *
 * A command's output goes to its journal and nowhere else, so that no reader can slow it down. It ends exactly once:
 * when its leader was waited for, its pipes are at their end (or 500 ms have passed), and, after a timeout or a cancel,
 * nothing of its tree is left. What goes on in the background afterwards is journaled on, and can be killed by a cancel.
 */
#ifndef HOLDFAST_EXEC_H
#define HOLDFAST_EXEC_H

#include "child.h"
#include "journal.h"
#include "server.h"

enum exec_state { EXEC_ALIVE = 1, EXEC_EXITED = 2, EXEC_TIMED_OUT = 3, EXEC_CANCELLED = 4 };

struct exec;

struct exec_pipe {
  struct source source;
  struct exec *exec;
};

struct exec {
  struct exec *next_same_hash;
  struct exec *next_active;
  bool active;
  char id[EXEC_ID_MAX + 1];
  char digest[EXEC_DIGEST_MAX + 1];
  const char *failure;
  enum exec_state state;
  /* What it will have ended as. */
  enum exec_state outcome;
  uint64_t serial;
  pid_t pid;
  int exit_code;
  int signal;
  uint64_t started_at_ms;
  uint64_t ended_at_ms;
  struct journal journal;
  struct exec_pipe stdout_pipe;
  struct exec_pipe stderr_pipe;
  struct exec_pipe stdin_pipe;
  int status_fd;
  /* The leader was waited for. */
  bool reaped;
  uint64_t drain_until;
  /* Lived time at which it has had its time; 0 for never. */
  uint64_t timeout_at;
  /* Of an ended one: where its exit record begins, and so where its output up to then ends. */
  uint64_t exit_at;
  bool killing;
  /* The last look found nothing alive, and no process of it was seen dying since. */
  bool calm;
  /* How far the look under way has come, and whether it found anything yet. */
  int64_t hunt_position;
  bool hunt_found;
  uint64_t kill_at;
  uint64_t kill_pause;
  uint64_t kill_until;
  uint8_t *input;
  size_t input_start;
  size_t input_end;
  uint64_t input_accepted;
  bool input_ends;
};

struct exec_order {
  struct slice id;
  struct slice argv;
  struct slice env;
  struct slice cwd;
  struct slice user;
  uint64_t timeout_ms;
  bool with_stdin;
  uint64_t journal_cap;
  struct slice digest;
};

/* Opens the control directory's journals. False with errno. */
bool execs_init(const char *control);
struct exec *exec_find(struct slice id);
struct exec *exec_by_serial(uint64_t serial);
/* Calls `each` for every exec known. */
void execs_each(void (*each)(struct exec *exec, void *context), void *context);
uint32_t execs_known(void);

struct outcome exec_start(struct server *server, const struct exec_order *order, struct exec **exec);
void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome);
/* For an exec that has ended and is not being killed: nothing may use it any more. */
void exec_forget(struct exec *exec);
bool exec_has_ended(const struct exec *exec);
enum journal_read exec_read(const struct exec *exec, uint64_t cursor, uint32_t max, struct writer *out, uint64_t *next);
/* Takes what fits of `data`, which begins where stdin has got to. */
void exec_input(struct server *server, struct exec *exec, struct slice data);
void exec_input_end(struct server *server, struct exec *exec);
size_t exec_input_room(const struct exec *exec);
void exec_write(const struct exec *exec, struct writer *out);

/* A child is dead and about to be waited for. */
void execs_dying(struct server *server, pid_t pid);
void execs_reaped(struct server *server, pid_t pid, int status);
void execs_tick(struct server *server);
void execs_bury(struct server *server);
/* Ends every command, waiting a bounded time until they are gone. */
void execs_end(void);

#endif
