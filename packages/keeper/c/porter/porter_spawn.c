/*
 * Starts helper processes for the server. A fork copies the page tables of the process that forks, and the process
 * cannot run meanwhile. For a server of a few hundred megabytes that takes milliseconds; for the small spawner it is
 * negligible.
 *
 * The server sends requests over one socket, descriptor 3, which no other process has. Both directions consist of
 * frames in the keeper's format. Requests:
 *
 * - RUN id: argv and env (lists of strings), stdio (a path, or empty), how many bytes of stdout and of stderr to
 *   return, and whether the helper is tied to the spawner
 *
 * - KILL id
 *
 * Answers:
 *
 * - RECEIVED id: the helper's pid, or 0 if there is no such helper. Sent at once for every request.
 *
 * - OUTPUT id: the stream (stdout or stderr) and a piece of its output. Sent when the piece arrives.
 *
 * - ENDED id: how the helper ended (exit, signal, or a failed start) and its exit code, signal or errno. Sent once for
 *   every RUN, as its last answer.
 *
 * The spawner waits only for its own children, not for processes that they leave running. It exits as soon as the
 * server closes the socket or sends an invalid request. Helpers then keep running, except those that are tied to the
 * spawner.
 */
#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop/descriptors.h"
#include "loop/frame.h"
#include "loop/limits.h"

enum { RUN = 1, KILL = 2, RECEIVED = 0x8001, OUTPUT = 0x0101, ENDED = 0x0102 };
enum { EXITED = 0, SIGNALLED = 1, NOT_STARTED = 2 };

#define STREAMS 2
#define FIXED_POLLS 2

struct output {
  /* Descriptor of the pipe for the output; -1 if the output is not returned to the server or has ended. */
  int fd;
  uint32_t left;
};

struct helper {
  uint32_t id;
  /* Pid of the helper; 0 if the slot is free. */
  pid_t pid;
  struct output outputs[STREAMS];
};

struct order {
  /* A single allocation that holds the pointers and then the strings. */
  char **argv;
  char **env;
  char *stdio;
  bool tied;
};

static struct {
  pid_t pid;
  int link;
  int signals;
  bool reap;
  struct helper helpers[HELPERS_MAX];
  /*
   * For each slot, the errno of a helper that could not be started. The child writes the errno before it exits, so the
   * memory is shared with it until the helper's program runs.
   */
  int *errors;
  uint8_t input[4 + FRAME_SIZE_MAX];
  size_t input_size;
  struct chunk *first;
  struct chunk **last;
  size_t queued;
} spawner;

/* ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void send_frame(struct writer *out) {
  struct chunk *chunk = writer_end(out);
  if (!chunk) exit(porter_failed("there is no memory for an answer"));
  *spawner.last = chunk;
  spawner.last = &chunk->next;
  spawner.queued += chunk->size;
}

static void send_received(uint32_t id, pid_t pid) {
  struct writer out = writer_begin(id, RECEIVED, 4);
  write_u32(&out, (uint32_t)pid);
  send_frame(&out);
}

static void send_ended(uint32_t id, uint8_t how, int number) {
  struct writer out = writer_begin(id, ENDED, 5);
  write_u8(&out, how);
  write_u32(&out, (uint32_t)number);
  send_frame(&out);
}

/*
 * Returns whether the queue for the server is full. If so, the spawner reads neither requests nor output of helpers,
 * because both would add to the queue, and only waits until the server accepts data.
 */
static bool is_full(void) {
  return spawner.queued >= SPAWN_QUEUE_MAX;
}

/* Sends queued answers. Returns false if the server has closed the socket. */
static bool send_answers(void) {
  while (spawner.first) {
    struct chunk *chunk = spawner.first;
    size_t left = chunk->size - chunk->sent;
    ssize_t sent = send(spawner.link, chunk->data + chunk->sent, left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    spawner.queued -= (size_t)sent;
    chunk->sent += (size_t)sent;
    if (chunk->sent < chunk->size) continue;
    spawner.first = chunk->next;
    if (!spawner.first) spawner.last = &spawner.first;
    free(chunk);
  }
  return true;
}

/* ── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct helper *helper_with(uint32_t id) {
  for (size_t i = 0; i < HELPERS_MAX; i++) {
    if (spawner.helpers[i].pid && spawner.helpers[i].id == id) return &spawner.helpers[i];
  }
  return NULL;
}

static struct helper *free_place(void) {
  for (size_t i = 0; i < HELPERS_MAX; i++) {
    if (!spawner.helpers[i].pid) return &spawner.helpers[i];
  }
  return NULL;
}

static void close_output(struct output *output) {
  if (output->fd >= 0) close(output->fd);
  output->fd = -1;
}

/*
 * Runs in the child that becomes the helper. Resets everything that was inherited from the process that started the
 * server. If the helper is tied and the spawner has already ended, exits without running the program, because no caller
 * expects the helper's effects any more.
 */
static void become(const struct order *order, const int *kept) {
  sigset_t none;
  if (order->tied && prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) return;
  if (order->tied && getppid() != spawner.pid) _exit(PORTER_FAILED);
  setsid();
  int stdio = open(*order->stdio ? order->stdio : "/dev/null", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (stdio < 0) return;
  for (int fd = 0; fd <= STREAMS; fd++) {
    int from = fd > 0 && kept[fd - 1] >= 0 ? kept[fd - 1] : stdio;
    if (dup2(from, fd) < 0) return;
  }
  descriptors_close_from(STREAMS + 1);
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  execve(order->argv[0], order->argv, order->env);
}

/* Opens a pipe if output is to be returned. Only the spawner's end is non-blocking. */
static bool open_output(struct output *output, int *kept, uint32_t bytes) {
  int ends[2];
  *output = (struct output){.fd = -1, .left = bytes};
  *kept = -1;
  if (bytes == 0) return true;
  if (pipe2(ends, O_CLOEXEC) < 0) return false;
  output->fd = ends[0];
  *kept = ends[1];
  return fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

/* Starts a helper. Returns 0, or the errno of the failure. */
static int start(struct helper *helper, uint32_t id, const struct order *order, const uint32_t *bytes) {
  int kept[STREAMS] = {-1, -1};
  int *error = &spawner.errors[helper - spawner.helpers];
  int failed = 0;
  *error = 0;
  for (int i = 0; i < STREAMS; i++) helper->outputs[i].fd = -1;
  for (int i = 0; i < STREAMS && !failed; i++) {
    if (!open_output(&helper->outputs[i], &kept[i], bytes[i])) failed = errno;
  }
  pid_t pid = failed ? -1 : fork();
  if (pid == 0) {
    become(order, kept);
    *error = errno;
    _exit(PORTER_FAILED);
  }
  if (pid < 0 && !failed) failed = errno;
  for (int i = 0; i < STREAMS; i++) {
    if (kept[i] >= 0) close(kept[i]);
    if (failed) close_output(&helper->outputs[i]);
  }
  if (!failed) *helper = (struct helper){id, pid, {helper->outputs[0], helper->outputs[1]}};
  return failed;
}

/*
 * Reads once from the pipe of an output, and sends the part that the server wants. Returns false if nothing can be read
 * now.
 */
static bool read_output(struct helper *helper, int stream) {
  static uint8_t data[SPAWN_READ];
  struct output *output = &helper->outputs[stream];
  if (output->fd < 0) return false;
  ssize_t size = read(output->fd, data, sizeof data);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) {
    close_output(output);
    return false;
  }
  uint32_t wanted = (size_t)size < output->left ? (uint32_t)size : output->left;
  output->left -= wanted;
  if (wanted == 0) return true;
  struct writer out = writer_begin(helper->id, OUTPUT, 5 + wanted);
  write_u8(&out, (uint8_t)stream);
  write_bytes(&out, data, wanted);
  send_frame(&out);
  return true;
}

/*
 * Reports the end of a helper after reading the rest of its pipes. A process that the helper left running may
 * hold the pipes open and keep writing; the spawner does not wait for that output.
 */
static void finish_helper(struct helper *helper, int status) {
  for (int i = 0; i < STREAMS; i++) {
    for (int reads = 0; reads < SPAWN_LAST_READS && read_output(helper, i);) reads++;
    close_output(&helper->outputs[i]);
  }
  int error = spawner.errors[helper - spawner.helpers];
  if (error) {
    send_ended(helper->id, NOT_STARTED, error);
  } else if (WIFEXITED(status)) {
    send_ended(helper->id, EXITED, WEXITSTATUS(status));
  } else {
    send_ended(helper->id, SIGNALLED, WTERMSIG(status));
  }
  helper->pid = 0;
}

static void reap(void) {
  struct signalfd_siginfo signal;
  while (read(spawner.signals, &signal, sizeof signal) > 0) spawner.reap = true;
  while (spawner.reap && !is_full()) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) spawner.reap = false;
    for (size_t i = 0; pid > 0 && i < HELPERS_MAX; i++) {
      if (spawner.helpers[i].pid == pid) finish_helper(&spawner.helpers[i], status);
    }
  }
}

/* ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Copies the strings of a list to `*text` and their addresses to `*pointers`, terminated by NULL. */
static char **take_list(struct reader *in, char ***pointers, char **text) {
  char **list = *pointers;
  uint32_t count = read_u32(in);
  for (uint32_t i = 0; i < count && !in->bad; i++) {
    struct slice string = read_str(in);
    *(*pointers)++ = *text;
    memcpy(*text, string.data, string.size);
    (*text)[string.size] = 0;
    *text += string.size + 1;
  }
  *(*pointers)++ = NULL;
  return list;
}

/*
 * Starts the helper of a request. In the payload each string is preceded by its size in four bytes. There are therefore
 * at most a quarter as many strings as bytes, which limits the memory for the pointers to them.
 */
static bool run(uint32_t id, struct reader in) {
  size_t size = (size_t)(in.end - in.at);
  size_t pointers_max = size / 4 + 2;
  char **memory = malloc(pointers_max * sizeof(char *) + size + pointers_max + 1);
  if (!memory) exit(porter_failed("there is no memory for a request"));
  char **pointers = memory;
  char *text = (char *)(memory + pointers_max);
  struct order order;
  order.argv = take_list(&in, &pointers, &text);
  order.env = take_list(&in, &pointers, &text);
  struct slice stdio = read_str(&in);
  order.stdio = text;
  memcpy(text, stdio.data, stdio.size);
  text[stdio.size] = 0;
  uint32_t bytes[STREAMS];
  for (int i = 0; i < STREAMS; i++) bytes[i] = read_u32(&in);
  order.tied = read_u8(&in);
  bool valid = reader_done(&in) && order.argv[0] && !helper_with(id);
  if (valid) {
    struct helper *helper = free_place();
    int failed = helper ? start(helper, id, &order, bytes) : EAGAIN;
    send_received(id, failed ? 0 : helper->pid);
    if (failed) send_ended(id, NOT_STARTED, failed);
  }
  free(memory);
  return valid;
}

/*
 * Kills a helper and its session. The helper is a child that was not reaped, so its pid is valid. If the helper has not
 * created its session yet, it has not started another process either, so it is enough to kill the helper alone.
 */
static bool kill_helper(uint32_t id, const struct reader *in) {
  if (!reader_done(in)) return false;
  const struct helper *helper = helper_with(id);
  if (helper) {
    kill(-helper->pid, SIGKILL);
    kill(helper->pid, SIGKILL);
  }
  send_received(id, helper ? helper->pid : 0);
  return true;
}

static bool obey(const struct frame *frame) {
  struct reader in = reader_of(frame->payload, frame->payload_size);
  if (frame->type == RUN) return run(frame->id, in);
  return frame->type == KILL && kill_helper(frame->id, &in);
}

/* Processes the requests received in one turn of the loop. An incomplete frame stays for the next turn. */
static int obey_all(void) {
  size_t done = 0;
  for (;;) {
    struct frame frame;
    size_t need;
    enum frame_status status =
        frame_parse(spawner.input + done, spawner.input_size - done, &frame, &need);
    if (status == FRAME_PARTIAL) break;
    if (status != FRAME_WHOLE || !obey(&frame)) {
      errno = 0;
      return porter_failed("invalid request");
    }
    done += need;
  }
  spawner.input_size -= done;
  memmove(spawner.input, spawner.input + done, spawner.input_size);
  return PORTER_DONE;
}

/* ── The loop ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Collects the descriptors to poll: the server's socket, the signals, and every open output of a helper. `owners[i]` is
 * set to the helper whose output is `polls[i]`.
 */
static size_t gather(struct pollfd *polls, struct helper **owners) {
  bool full = is_full();
  size_t count = FIXED_POLLS;
  polls[0] = (struct pollfd){spawner.link, (short)((full ? 0 : POLLIN) | (spawner.first ? POLLOUT : 0)), 0};
  polls[1] = (struct pollfd){full ? -1 : spawner.signals, POLLIN, 0};
  for (size_t i = 0; !full && i < HELPERS_MAX * STREAMS; i++) {
    struct helper *helper = &spawner.helpers[i / STREAMS];
    const struct output *output = &helper->outputs[i % STREAMS];
    if (!helper->pid || output->fd < 0) continue;
    polls[count] = (struct pollfd){output->fd, POLLIN, 0};
    owners[count++] = helper;
  }
  return count;
}

static void read_outputs(const struct pollfd *polls, struct helper **owners, size_t count) {
  for (size_t i = FIXED_POLLS; i < count && !is_full(); i++) {
    if (!polls[i].revents) continue;
    read_output(owners[i], owners[i]->outputs[0].fd == polls[i].fd ? 0 : 1);
  }
}

static int serve(void) {
  static struct pollfd polls[FIXED_POLLS + HELPERS_MAX * STREAMS];
  static struct helper *owners[FIXED_POLLS + HELPERS_MAX * STREAMS];
  for (;;) {
    size_t count = gather(polls, owners);
    if (poll(polls, count, spawner.reap && !is_full() ? 0 : -1) < 0) return porter_failed("poll");
    if (polls[0].revents & (POLLHUP | POLLERR)) return PORTER_DONE;
    read_outputs(polls, owners, count);
    reap();
    if (polls[0].revents & POLLIN) {
      uint8_t *end = spawner.input + spawner.input_size;
      ssize_t got = recv(spawner.link, end, sizeof spawner.input - spawner.input_size, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return PORTER_DONE;
      if (got > 0) spawner.input_size += (size_t)got;
      if (got > 0 && obey_all() != PORTER_DONE) return PORTER_FAILED;
    }
    if (!send_answers()) return PORTER_DONE;
  }
}

/*
 * Detaches from the terminal and ignores termination signals. A terminal or a service manager sends them to all
 * processes, but the spawner must run until the server closes the socket.
 */
static bool stand_apart(void) {
  sigset_t child;
  setsid();
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  signal(SIGCHLD, SIG_DFL);
  if (chdir("/") < 0 || sigprocmask(SIG_SETMASK, &child, NULL) < 0) return false;
  spawner.signals = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
  return spawner.signals >= 0;
}

/*
 * Checks that the descriptors 0 to 2 are open, and closes all descriptors above the server's socket, which is
 * descriptor 3. While 0 to 2 are in use, no pipe of a helper gets one of these numbers, which the helper needs for its
 * stdio.
 */
static bool take_descriptors(void) {
  for (int fd = 0; fd < SPAWN_LINK; fd++) {
    if (fcntl(fd, F_GETFD) < 0) return false;
  }
  spawner.link = SPAWN_LINK;
  descriptors_close_from(SPAWN_LINK + 1);
  return fcntl(SPAWN_LINK, F_SETFD, FD_CLOEXEC) == 0;
}

int porter_spawn(int argc, char **argv) {
  (void)argv;
  if (argc != 0) return PORTER_USAGE;
  if (!take_descriptors()) return porter_failed("the link, or one before it, is not open");
  size_t errors = HELPERS_MAX * sizeof *spawner.errors;
  spawner.errors = mmap(NULL, errors, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (spawner.errors == MAP_FAILED) return porter_failed("mmap");
  if (!stand_apart()) return porter_failed("signals can't be waited for");
  spawner.last = &spawner.first;
  spawner.pid = getpid();
  return serve();
}
