/*
 * Execs and how they end.
 *
 * A command's output goes to its journal and nowhere else, so that no reader can slow it down. It ends exactly once:
 * when its leader was waited for, its output is at its end (or 500 ms have passed), and, after a timeout or a cancel,
 * nothing of its tree is left. What goes on in the background afterwards is journaled on, and can be killed by a cancel.
 */
#ifndef HOLDFAST_EXEC_H
#define HOLDFAST_EXEC_H

#include "child.h"
#include "journal.h"
#include "server.h"
#include "terminal.h"

enum exec_state { EXEC_ALIVE = 1, EXEC_EXITED = 2, EXEC_TIMED_OUT = 3, EXEC_CANCELLED = 4 };

struct exec;

struct exec_pipe {
  struct source source;
  struct exec *exec;
  /* How often it was found full, up to the number at which it is made larger. */
  int full_reads;
};

struct exec {
  struct exec *next_same_hash;
  struct exec *next_same_serial;
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
  /* The how manieth events these were; 0 for a begin that somebody asked for, and while it runs. */
  uint64_t begin_number;
  uint64_t end_number;
  /* A run of a row. */
  bool kept;
  struct journal journal;
  /* On a terminal stdout and stdin are the keeper's end of it, twice, and there is no stderr. */
  bool terminal;
  struct exec_pipe stdout_pipe;
  struct exec_pipe stderr_pipe;
  struct exec_pipe stdin_pipe;
  /* The command's end of its terminal. While the leader lives it is held, so that a command which closes it, to open it
   * again later, has not reached the end of its output; else -1. */
  int terminal_fd;
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
  /* The look under way is for it too, and what that found so far. */
  bool looked_for;
  bool found;
  uint64_t kill_at;
  uint64_t kill_pause;
  uint64_t kill_until;
  uint8_t *input;
  size_t input_start;
  size_t input_end;
  uint64_t input_accepted;
  /* The byte accepted last, -1 where there was none. */
  int input_last;
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
  /* All 0: pipes. */
  struct terminal_size terminal;
  uint64_t journal_cap;
  struct slice digest;
};

/* ── exec.c: the table, from start to end ── */

/* Opens the control directory's journals, and settles what all commands have in common. False with errno. */
bool execs_init(const char *control);
struct exec *exec_find(struct slice id);
struct exec *exec_by_serial(uint64_t serial);
/* Calls `each` for every exec known, or for those that run or are being killed. */
void execs_each(void (*each)(struct exec *exec, void *context), void *context);
struct exec *execs_active(void);
uint32_t execs_known(void);

struct outcome exec_start(struct server *server, const struct exec_order *order, struct exec **exec);
/* Tells every link of one that nobody asked for. */
void exec_announce_begin(struct server *server, struct exec *exec);
/* For an exec that has ended and is not being killed: nothing may use it any more. What it left running goes on. */
void exec_forget(struct exec *exec, bool keep_journal);
/* Removes the journal of an exec that is not known. False where there is none. */
bool exec_forget_journal(struct slice id);
bool exec_has_ended(const struct exec *exec);
enum journal_read exec_read(const struct exec *exec, uint64_t cursor, uint32_t max, struct writer *out, uint64_t *next);
void exec_write(const struct exec *exec, struct writer *out);
/* Has it looked after in every turn. */
void exec_activate(struct exec *exec);

void execs_reaped(struct server *server, pid_t pid, int status);
void execs_tick(struct server *server);
void execs_bury(struct server *server);
/* Ends every command, waiting a bounded time until they are gone. */
void execs_end(void);

/* ── exec_output.c ── */

/* Takes both descriptors over; `error` is -1 where there is none. False where they can't be watched. */
bool exec_output_open(struct server *server, struct exec *exec, int output, int error);
/* Journals what there is. */
void exec_output_drain(struct exec *exec);
/* All output came, up to its end. */
bool exec_output_done(const struct exec *exec);
/* What is still written is journaled no more, but read. */
void exec_output_leave(struct exec *exec);
void exec_output_close(struct exec *exec);
/* Lets the outcome say that the journal is not whole. */
void exec_output_note(struct exec *exec);

/* ── exec_input.c ── */

/* Takes the descriptor over. */
bool exec_input_open(struct server *server, struct exec *exec, int fd);
/* Takes what fits of `data`, which begins where stdin has got to. */
void exec_input(struct server *server, struct exec *exec, struct slice data);
void exec_input_end(struct server *server, struct exec *exec);
size_t exec_input_room(const struct exec *exec);
/* What comes from here on is taken as if read. */
void exec_input_drop(struct exec *exec);

/* ── exec_kill.c ── */

void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome);
/* Goes on killing; says through server_due when it wants to go on. */
void execs_kill(struct server *server);
/* Whether deaths are to be told before they are waited for. */
bool execs_watch_deaths(void);
/* A child is dead and about to be waited for. */
void execs_dying(struct server *server, pid_t pid);
/* KILL to everything below the keeper: how many were alive, -1 where that can't be known. */
int kill_all_below(void);

#endif
