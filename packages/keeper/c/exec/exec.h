/*
 * Execs and how they end. A command's output goes only to its journal, and readers read the journal. A reader can slow
 * a command down only by requesting a hold. Held output is not dropped when the journal is full; the command has to
 * wait instead. Each hold ends by itself after a time.
 *
 * An exec ends exactly once: when its leader was reaped and its output was read to its end. If background processes
 * keep the output open, the exec ends 500 ms after its leader. After a timeout or cancel, the exec ends only when its
 * whole process tree is gone or the keeper has stopped trying to kill it. Background processes that outlive the exec
 * are still journaled, and a cancel kills them.
 */
#ifndef HOLDFAST_EXEC_H
#define HOLDFAST_EXEC_H

#include "exec/child.h"
#include "exec/journal.h"
#include "loop/server.h"
#include "exec/terminal.h"

enum exec_state { EXEC_ALIVE = 1, EXEC_EXITED = 2, EXEC_TIMED_OUT = 3, EXEC_CANCELLED = 4 };

struct exec;

struct exec_pipe {
  struct source source;
  struct exec *exec;
  /* Number of reads that found the pipe full. After PIPE_FULL_READS of them the pipe's buffer is enlarged. */
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
  /* The state with which the exec will end. */
  enum exec_state outcome;
  uint64_t serial;
  pid_t pid;
  int exit_code;
  int signal;
  uint64_t started_at_ms;
  uint64_t ended_at_ms;
  /* Sequence number of the begin event; 0 if a client requested the start, because that client receives an answer
   * instead. */
  uint64_t begin_number;
  /* Sequence number of the end event; 0 if the exec has not ended. */
  uint64_t end_number;
  /* Whether the exec is a run of a supervised command. */
  bool supervised;
  struct journal journal;
  /*
   * Whether the exec has a terminal. If so, stdout and stdin are two descriptors of the terminal's master, and stderr
   * does not exist.
   */
  bool terminal;
  struct exec_pipe stdout_pipe;
  struct exec_pipe stderr_pipe;
  struct exec_pipe stdin_pipe;
  /*
   * The command's end of its terminal, or -1 if the exec has no terminal or its leader has ended. The keeper also keeps
   * this end open while the leader lives. Otherwise the output would end whenever the command closes its terminal, even
   * if the command opens the terminal again.
   */
  int terminal_fd;
  int status_fd;
  /*
   * When the hold of the output ends, in lived time, which excludes pauses and standby. Until then no held output is
   * dropped: if the journal is full of held output, the command waits.
   */
  uint64_t held_until;
  /*
   * Whether the command has to wait for the reader of the held output. Meanwhile the keeper does not read the
   * command's output.
   */
  bool waits_for_reader;
  /* Whether the leader was reaped. */
  bool reaped;
  uint64_t drain_until;
  /* When the exec times out, in lived time, which excludes pauses and standby; 0 if it has no timeout. */
  uint64_t timeout_at;
  /* After the end: the offset of the exit record, at which the output of the exec ends. */
  uint64_t exit_at;
  bool killing;
  /*
   * Whether the last scan found no living process of the exec, and no process of the exec has died since that scan, as
   * far as the keeper has seen. If the next scan finds none either, the exec's process tree is gone.
   */
  bool calm;
  /* Whether the scan in progress looks for processes of this exec. */
  bool scanned;
  /* Whether the scan in progress has found a process of this exec. */
  bool found;
  uint64_t kill_at;
  uint64_t kill_pause;
  uint64_t kill_until;
  uint8_t *input;
  size_t input_start;
  size_t input_end;
  uint64_t input_accepted;
  /* The last byte that was accepted for stdin, or -1 if none was accepted. */
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
  /* The terminal's size. If all fields are 0, the command gets pipes instead. */
  struct terminal_size terminal;
  uint64_t journal_cap;
  struct slice digest;
};

/* ── exec.c: the table of all execs, and the start and end of an exec ── */

/* Opens the journals' directory in the control directory, and prepares the state that all commands share.
 * Returns false with errno. */
bool execs_init(const char *control);
struct exec *exec_find(struct slice id);
struct exec *exec_by_serial(uint64_t serial);
/* Calls `each` for every known exec. */
void execs_each(void (*each)(struct exec *exec, void *context), void *context);
/*
 * Returns the first active exec: one that runs, is being killed, waits for a reader, or has a leader that is not reaped
 * yet. The other active execs follow through `next_active`.
 */
struct exec *execs_active(void);
uint32_t execs_known(void);

struct outcome exec_start(struct server *server, const struct exec_order *order, struct exec **exec);
/* Announces an exec that no client requested: sends its begin event to all links. */
void exec_announce_begin(struct server *server, struct exec *exec);
/*
 * Forgets an exec that has ended and is not being killed any more. The caller must not use the exec afterwards.
 * Background processes of the exec keep running.
 */
void exec_forget(struct server *server, struct exec *exec, bool keep_journal);
/* Removes the journal of an unknown exec. Returns false if there is none. */
bool exec_forget_journal(struct slice id);
bool exec_has_ended(const struct exec *exec);
enum journal_read exec_read(const struct exec *exec, uint64_t cursor, uint32_t max, struct writer *out, uint64_t *next);
void exec_write(const struct exec *exec, struct writer *out);
/*
 * Adds the exec to the active execs. Each turn of the loop checks every active exec for deadlines, output and its end.
 */
void exec_activate(struct exec *exec);

void execs_reaped(struct server *server, pid_t pid, int status);
void execs_tick(struct server *server);
void execs_free_forgotten(struct server *server);
/* Kills all commands, and waits until they are gone, but only for a limited time. */
void execs_end(void);

/* ── exec_timeout.c ── */

/* Begins the timeout of a command that starts; 0 means no timeout. */
void exec_timeout_begin(struct server *server, struct exec *exec, uint64_t timeout_ms);
/* Makes the loop wake up when the timeout ends. */
void exec_timeout_schedule(struct server *server, const struct exec *exec);
/* Kills the command's tree if its timeout has passed. */
void exec_timeout_enforce(struct server *server, struct exec *exec);

/* ── exec_output.c ── */

/* Takes ownership of `output` and `error`, and watches them; `error` is -1 if there is no stderr. Returns false if
 * they cannot be watched. */
bool exec_output_open(struct server *server, struct exec *exec, int output, int error);
/* Reads the output that is in the pipes now and journals it, even if the command is waiting because of a hold. */
void exec_output_drain(struct server *server, struct exec *exec);
/*
 * Holds the output from `cursor` on for `lease_ms`: until the hold ends or another one replaces it, held output stays
 * in the journal. Replaces an earlier hold; a `lease_ms` of 0 ends the hold. The cursor lies between the journal's
 * floor and end. While held output fills the journal up to its cap, further output stays in the command's pipes.
 */
void exec_output_hold(struct server *server, struct exec *exec, uint64_t cursor, uint64_t lease_ms);
/* Continues to read the output of a command that waited for a reader, once it no longer has to wait. */
void exec_output_advance(struct server *server, struct exec *exec);
/* Returns whether all output was read up to the end of stdout and stderr. */
bool exec_output_done(const struct exec *exec);
/* Stops journaling the output of an exec. Further output is read and discarded. */
void exec_output_leave(struct server *server, struct exec *exec);
void exec_output_close(struct exec *exec);
/*
 * If the journal does not contain all output, sets the exec's failure to "journal_full", unless it has a failure
 * already.
 */
void exec_output_note(struct exec *exec);

/* ── exec_input.c ── */

/* Takes ownership of `fd`. */
bool exec_input_open(struct server *server, struct exec *exec, int fd);
/* Accepts the part of `data` for which the stdin buffer has room. `data` starts at the current stdin offset. */
void exec_input(struct server *server, struct exec *exec, struct slice data);
void exec_input_end(struct server *server, struct exec *exec);
size_t exec_input_room(const struct exec *exec);
/* Closes stdin; later input is accepted and discarded. */
void exec_input_drop(struct exec *exec);

/* ── exec_kill.c ── */

void exec_kill(struct server *server, struct exec *exec, enum exec_state outcome);
/*
 * Performs the next step of killing for the execs that are being killed. Makes the loop wake up for the step after it.
 */
void execs_kill(struct server *server);
/* Returns whether execs_dying must be called for each dead child before the child is reaped. */
bool execs_watch_deaths(void);
/* Must be called for a dead child before it is reaped. */
void execs_dying(struct server *server, pid_t pid);
/* Sends SIGKILL to every descendant of the keeper. Returns how many were alive, or -1 if /proc cannot be read. */
int kill_all_below(void);

#endif
