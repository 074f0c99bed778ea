#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "exec/exec.h"
#include "exec/drain.h"

void exec_output_note(struct exec *exec) {
  if (exec->journal.full && exec->failure[0] == 0) exec->failure = "journal_full";
}

bool exec_output_done(const struct exec *exec) {
  return exec->stdout_pipe.source.fd < 0 && exec->stderr_pipe.source.fd < 0;
}

static bool is_busy(const struct exec_pipe *pipe) {
  return pipe->full_reads >= PIPE_FULL_READS;
}

/*
 * Enlarges the buffer of a pipe that was found full repeatedly. Other pipes keep small buffers, because all
 * pipes of a user share a limit. If that limit is reached, this pipe keeps its small buffer too.
 */
static void widen_if_full(struct exec_pipe *pipe, size_t size) {
  if (size < JOURNAL_RECORD_MAX || is_busy(pipe)) return;
  if (++pipe->full_reads == PIPE_FULL_READS) fcntl(pipe->source.fd, F_SETPIPE_SZ, PIPE_BUSY_SIZE);
}

/*
 * Returns whether the command must wait: held output fills the journal up to its cap, so further output has to stay
 * in the command's pipes.
 */
static bool must_wait(const struct server *server, const struct exec *exec) {
  const struct journal *journal = &exec->journal;
  return server->lived_ms < exec->held_until && !journal->full && journal->end - journal->kept_from >= journal->cap;
}

static void end_hold_if_over(const struct server *server, struct exec *exec) {
  if (server->lived_ms >= exec->held_until) exec->journal.kept_from = JOURNAL_KEEPS_NOTHING;
}

/*
 * Stops watching the pipes while the command waits. The end of a pipe is not watched either, because it can be handled
 * only after the output before it was read.
 */
static void begin_wait(struct server *server, struct exec *exec) {
  source_ignore(&exec->stdout_pipe.source);
  source_ignore(&exec->stderr_pipe.source);
  exec->waits_for_reader = true;
  exec_activate(exec);
  server_due(server, exec->held_until);
}

/*
 * Reads a pipe and journals the output. Several records are read and written at once: each read wakes a command that
 * waits for room in the pipe, and for a file system one large write is cheaper than several small ones. Output that
 * cannot be journaled is still read, because a full disk must not stop the command. A read error is treated as the end
 * of the output, because a read from a terminal fails with EIO once the terminal's other end is closed.
 */
static void drain_into(struct server *server, struct exec_pipe *pipe, uint8_t *records, struct iovec places[],
                       int count, bool may_wait) {
  struct exec *exec = pipe->exec;
  enum journal_kind kind = pipe == &exec->stdout_pipe ? JOURNAL_STDOUT : JOURNAL_STDERR;
  for (int i = 0; i < DRAIN_TURN_READS && pipe->source.fd >= 0; i += count) {
    if (may_wait && must_wait(server, exec)) {
      begin_wait(server, exec);
      return;
    }
    ssize_t size = readv(pipe->source.fd, places, count);
    if (size > 0) {
      if (!journal_append_run(&exec->journal, kind, records, (size_t)size)) exec_output_note(exec);
      widen_if_full(pipe, (size_t)size);
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      source_close(&pipe->source);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

static void drain(struct server *server, struct exec_pipe *pipe, bool may_wait) {
  struct exec *exec = pipe->exec;
  if (pipe->source.fd < 0) return;
  end_hold_if_over(server, exec);
  int count = is_busy(pipe) ? PIPE_BUSY_RECORDS : 1;
  uint8_t small[JOURNAL_HEADER + 512];
  uint8_t *records = malloc((size_t)count * JOURNAL_STRIDE);
  struct iovec places[PIPE_BUSY_RECORDS] = {{small + JOURNAL_HEADER, sizeof small - JOURNAL_HEADER}};
  for (int i = 0; records && i < count; i++) {
    places[i] = (struct iovec){records + (size_t)i * JOURNAL_STRIDE + JOURNAL_HEADER, JOURNAL_RECORD_MAX};
  }
  drain_into(server, pipe, records ? records : small, places, records ? count : 1, may_wait);
  free(records);
  if (exec_has_ended(exec) && exec_output_done(exec)) journal_close(&exec->journal);
}

static void output_ready(struct server *server, struct source *source, uint32_t events) {
  (void)events;
  drain(server, (struct exec_pipe *)source, true);
}

static bool watch(struct server *server, struct source *source) {
  return source->fd < 0 || source_watch(server, source, EPOLLIN);
}

bool exec_output_open(struct server *server, struct exec *exec, int output, int error) {
  exec->stdout_pipe = (struct exec_pipe){.source = {.fd = output, .ready = output_ready}, .exec = exec};
  exec->stderr_pipe = (struct exec_pipe){.source = {.fd = error, .ready = output_ready}, .exec = exec};
  return watch(server, &exec->stdout_pipe.source) && watch(server, &exec->stderr_pipe.source);
}

void exec_output_drain(struct server *server, struct exec *exec) {
  drain(server, &exec->stdout_pipe, false);
  drain(server, &exec->stderr_pipe, false);
}

void exec_output_hold(struct server *server, struct exec *exec, uint64_t cursor, uint64_t lease_ms) {
  exec->journal.kept_from = cursor;
  exec->held_until = server->lived_ms + lease_ms;
  end_hold_if_over(server, exec);
}

void exec_output_advance(struct server *server, struct exec *exec) {
  if (!exec->waits_for_reader) return;
  if (must_wait(server, exec)) {
    server_due(server, exec->held_until);
    return;
  }
  exec->waits_for_reader = !watch(server, &exec->stdout_pipe.source) || !watch(server, &exec->stderr_pipe.source);
  /*
   * If the kernel had no memory to watch the pipes, the command still waits, and the next attempt follows after
   * WATCH_RETRY_MS.
   */
  if (exec->waits_for_reader) server_due(server, server->lived_ms + WATCH_RETRY_MS);
}

void exec_output_leave(struct server *server, struct exec *exec) {
  /* drain_take requires watched sources, but while a command waits for a reader its sources are not watched. */
  watch(server, &exec->stdout_pipe.source);
  watch(server, &exec->stderr_pipe.source);
  drain_take(&exec->stdout_pipe.source);
  drain_take(&exec->stderr_pipe.source);
}

void exec_output_close(struct exec *exec) {
  source_close(&exec->stdout_pipe.source);
  source_close(&exec->stderr_pipe.source);
}
