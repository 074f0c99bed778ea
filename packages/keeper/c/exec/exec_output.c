#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "exec.h"
#include "sink.h"

void exec_output_note(struct exec *exec) {
  if (exec->journal.full && exec->failure[0] == 0) exec->failure = "journal_full";
}

bool exec_output_done(const struct exec *exec) {
  return exec->stdout_pipe.source.fd < 0 && exec->stderr_pipe.source.fd < 0;
}

static bool is_busy(const struct exec_pipe *pipe) {
  return pipe->full_reads >= PIPE_FULL_READS;
}

/* Only for those that need it, because a user's pipes share a limit. Where it is reached the small ones do. */
static void widen_if_full(struct exec_pipe *pipe, size_t size) {
  if (size < JOURNAL_RECORD_MAX || is_busy(pipe)) return;
  if (++pipe->full_reads == PIPE_FULL_READS) fcntl(pipe->source.fd, F_SETPIPE_SZ, PIPE_BUSY_SIZE);
}

/*
 * What can't be journaled is still read: a full disk must not stop the command. A terminal ends with EIO. A busy pipe is
 * read and journaled in runs of records: each read wakes the command that waits for room, and small writes cost a file
 * system more than large ones.
 */
static void drain_into(struct exec_pipe *pipe, uint8_t *records, struct iovec places[], int count) {
  struct exec *exec = pipe->exec;
  enum journal_kind kind = pipe == &exec->stdout_pipe ? JOURNAL_STDOUT : JOURNAL_STDERR;
  for (int i = 0; i < DRAIN_TURN_READS && pipe->source.fd >= 0; i += count) {
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

static void drain(struct exec_pipe *pipe) {
  struct exec *exec = pipe->exec;
  if (pipe->source.fd < 0) return;
  int count = is_busy(pipe) ? PIPE_BUSY_RECORDS : 1;
  uint8_t small[JOURNAL_HEADER + 512];
  uint8_t *records = malloc((size_t)count * JOURNAL_STRIDE);
  struct iovec places[PIPE_BUSY_RECORDS] = {{small + JOURNAL_HEADER, sizeof small - JOURNAL_HEADER}};
  for (int i = 0; records && i < count; i++) {
    places[i] = (struct iovec){records + (size_t)i * JOURNAL_STRIDE + JOURNAL_HEADER, JOURNAL_RECORD_MAX};
  }
  drain_into(pipe, records ? records : small, places, records ? count : 1);
  free(records);
  if (exec_has_ended(exec) && exec_output_done(exec)) journal_close(&exec->journal);
}

static void output_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  drain((struct exec_pipe *)source);
}

static bool watch(struct server *server, struct source *source) {
  return source->fd < 0 || source_watch(server, source, EPOLLIN);
}

bool exec_output_open(struct server *server, struct exec *exec, int output, int error) {
  exec->stdout_pipe = (struct exec_pipe){.source = {.fd = output, .ready = output_ready}, .exec = exec};
  exec->stderr_pipe = (struct exec_pipe){.source = {.fd = error, .ready = output_ready}, .exec = exec};
  return watch(server, &exec->stdout_pipe.source) && watch(server, &exec->stderr_pipe.source);
}

void exec_output_drain(struct exec *exec) {
  drain(&exec->stdout_pipe);
  drain(&exec->stderr_pipe);
}

void exec_output_leave(struct exec *exec) {
  sink_take(&exec->stdout_pipe.source);
  sink_take(&exec->stderr_pipe.source);
}

void exec_output_close(struct exec *exec) {
  source_close(&exec->stdout_pipe.source);
  source_close(&exec->stderr_pipe.source);
}
