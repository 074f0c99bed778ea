#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "exec/exec.h"

static bool is_open(const struct exec *exec) {
  return exec->stdin_pipe.source.fd >= 0;
}

static size_t buffered(const struct exec *exec) {
  return exec->input_end - exec->input_start;
}

static void buffer_free(struct exec *exec) {
  free(exec->input);
  exec->input = NULL;
  exec->input_start = exec->input_end = 0;
}

void exec_input_drop(struct exec *exec) {
  source_close(&exec->stdin_pipe.source);
  buffer_free(exec);
}

/* Writes as much of `data` as stdin accepts. Closes stdin if it no longer has a reader. */
static size_t write_some(struct exec *exec, const uint8_t *data, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t written = write(exec->stdin_pipe.source.fd, data + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN) exec_input_drop(exec);
    if (written <= 0) break;
    done += (size_t)written;
  }
  return done;
}

/*
 * Ends stdin. A pipe is closed. To a terminal the end-of-file character is written. Returns false if the terminal has
 * no room for the character yet.
 */
static bool finish(struct exec *exec) {
  uint8_t typed[2];
  size_t size = exec->terminal ? terminal_end_of_file(exec->stdin_pipe.source.fd, exec->input_last, typed) : 0;
  size_t written = write_some(exec, typed, size);
  if (written == size || !is_open(exec)) {
    exec_input_drop(exec);
    return true;
  }
  if (written > 0) exec->input_last = -1;
  return false;
}

static void settle(struct server *server, struct exec *exec) {
  if (!is_open(exec)) return;
  bool waiting = buffered(exec) > 0;
  if (!waiting) {
    buffer_free(exec);
    if (exec->input_ends && finish(exec)) return;
    waiting = exec->input_ends;
  }
  if (!source_watch(server, &exec->stdin_pipe.source, waiting ? EPOLLOUT : 0)) exec_input_drop(exec);
}

static void input_ready(struct server *server, struct source *source, uint32_t events) {
  struct exec *exec = ((struct exec_pipe *)source)->exec;
  if (events & (EPOLLERR | EPOLLHUP)) {
    exec_input_drop(exec);
    return;
  }
  if (buffered(exec) > 0) {
    size_t written = write_some(exec, exec->input + exec->input_start, buffered(exec));
    if (is_open(exec)) exec->input_start += written;
  }
  settle(server, exec);
}

bool exec_input_open(struct server *server, struct exec *exec, int fd) {
  exec->stdin_pipe = (struct exec_pipe){.source = {.fd = fd, .ready = input_ready}, .exec = exec};
  return fd < 0 || source_watch(server, &exec->stdin_pipe.source, 0);
}

size_t exec_input_room(const struct exec *exec) {
  return is_open(exec) ? STDIN_BUFFER_MAX - buffered(exec) : SIZE_MAX;
}

static void accept(struct exec *exec, struct slice *data, size_t size) {
  if (size == 0) return;
  exec->input_accepted += size;
  exec->input_last = data->data[size - 1];
  data->data += size;
  data->size -= size;
}

static void buffer(struct exec *exec, struct slice *data) {
  size_t kept = buffered(exec);
  size_t taken = data->size < STDIN_BUFFER_MAX - kept ? data->size : STDIN_BUFFER_MAX - kept;
  if (STDIN_BUFFER_MAX - exec->input_end < taken) {
    memmove(exec->input, exec->input + exec->input_start, kept);
    exec->input_start = 0;
    exec->input_end = kept;
  }
  memcpy(exec->input + exec->input_end, data->data, taken);
  exec->input_end += taken;
  accept(exec, data, taken);
}

void exec_input(struct server *server, struct exec *exec, struct slice data) {
  if (is_open(exec) && !exec->input_ends) {
    if (!exec->input) accept(exec, &data, write_some(exec, data.data, data.size));
    if (is_open(exec) && data.size > 0 && !exec->input) exec->input = malloc(STDIN_BUFFER_MAX);
    if (is_open(exec) && exec->input) buffer(exec, &data);
    settle(server, exec);
  }
  if (!is_open(exec) || exec->input_ends) exec->input_accepted += data.size;
}

void exec_input_end(struct server *server, struct exec *exec) {
  exec->input_ends = true;
  settle(server, exec);
}
