/*
 * PID 1 of a sandbox. It starts execs and journals them, serves files, answers probes and reaps dead processes. Outside
 * a sandbox, in tests, it is an ordinary process that adopts its orphans.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "exec/exec.h"
#include "exec/exec_restart.h"
#include "files/files.h"
#include "loop/descriptors.h"
#include "loop/server.h"
#include "service/deadline.h"
#include "service/service.h"
#include "stream/stream.h"

#define DEFAULT_CONTROL "/.holdfast/control"
#define DEFAULT_OWNER 1000u
#define SOCKET_NAME "keeper.sock"
/* Length of the listen queue: enough for all possible streams to dial at once. */
#define BACKLOG 512

static void print(int fd, const char *text) {
  ssize_t ignored = write(fd, text, strlen(text));
  (void)ignored;
}

static int give_up(const char *what) {
  int error = errno;
  char line[256];
  const char *text = strerrordesc_np(error);
  snprintf(line, sizeof line, "keeper: %s: %s\n", what, text ? text : "unknown error");
  print(STDERR_FILENO, line);
  return 1;
}

/* Makes room for a connection by dropping the one that has waited longest without a hello. */
static bool make_room(struct server *server) {
  struct link *oldest = NULL;
  for (int i = 0; i < CONNECTIONS_MAX; i++) {
    struct link *link = server->links[i];
    if (!link) return true;
    if (!link->greeted && (!oldest || link->opened_at < oldest->opened_at)) oldest = link;
  }
  if (oldest) link_close(oldest);
  return oldest;
}

/*
 * Returns whether a connection comes from a process of the sandbox. The server runs outside the sandbox's pid
 * namespace and has no pid in it, so a peer with a pid is a command. Commands must not connect: one could send a
 * hello with the largest generation, and the keeper would then refuse the server.
 */
static bool comes_from_inside(const struct server *server, int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (!server->init) return false;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid != 0;
}

static void listener_ready(struct server *server, struct source *source, uint32_t events) {
  (void)events;
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) server_listen_later(server);
      return;
    }
    if (comes_from_inside(server, fd) || !make_room(server) || !link_open(server, fd)) close(fd);
  }
}

/*
 * Binds the socket to its full path if a socket address has room for the path. The full path is preferred because a
 * restore from a checkpoint finds the socket by the path to which it was bound.
 */
static bool bind_in(int fd, const char *control) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int size = snprintf(address.sun_path, sizeof address.sun_path, "%s/" SOCKET_NAME, control);
  if (size > 0 && (size_t)size < sizeof address.sun_path) {
    unlink(address.sun_path);
    return bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
  }
  if (chdir(control) < 0) return false;
  strcpy(address.sun_path, SOCKET_NAME);
  unlink(SOCKET_NAME);
  bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
  return chdir("/") == 0 && bound;
}

static bool listen_in(struct server *server, const char *control) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  server->listener = (struct source){.fd = fd, .ready = listener_ready};
  return bind_in(fd, control) && listen(fd, BACKLOG) == 0 && source_watch(server, &server->listener, EPOLLIN);
}

static void forget_socket(const char *control) {
  int directory = open(control, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  unlinkat(directory, SOCKET_NAME, 0);
  close(directory);
}

/*
 * Normalizes the inherited state. Afterwards stdio is open, all other descriptors are closed, and no signal is
 * ignored.
 */
static void settle_in(void) {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd < 3);
  if (fd >= 3) close(fd);
  descriptors_close_from(3);
  for (int number = 1; number <= 64; number++) signal(number, SIG_DFL);
  umask(0);
  if (getpid() != 1) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

static const char *from_environment(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

static int run(const char *control) {
  struct server server;
  if (mkdir(control, 0700) < 0 && errno != EEXIST) return give_up("control directory");
  if (!execs_init(control)) return give_up("journals");
  if (!server_init(&server, &keeper_service, &file_service)) return give_up("event loop");
  server.init = getpid() == 1;
  server.reap_all = true;
  server.installation = from_environment("HOLDFAST_INSTALLATION", "");
  server.sandbox = from_environment("HOLDFAST_SANDBOX", "");
  struct file_policy policy = {.uid = DEFAULT_OWNER, .gid = DEFAULT_OWNER, .reserve = true, .control = control};
  file_rules_init(&server.files, &policy);
  if (!listen_in(&server, control)) return give_up("socket");
  while (!server.stopping) {
    server_turn(&server);
    deadline_check(&server);
  }
  forget_socket(control);
  /* The keeper exits here, because the end of PID 1 ends every process of its namespace. */
  if (server.init) _exit(0);
  supervise_end();
  execs_end();
  streams_end();
  server_end(&server);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    print(STDOUT_FILENO, HOLDFAST_VERSION "\n");
    return 0;
  }
  if (argc == 3 && strcmp(argv[1], "prove") == 0) {
    print(STDOUT_FILENO, argv[2]);
    print(STDOUT_FILENO, "\n");
    return 0;
  }
  if (argc != 1) {
    print(STDERR_FILENO, "usage: keeper | keeper prove TOKEN | keeper --version\n");
    return 2;
  }
  settle_in();
  return run(from_environment("HOLDFAST_CONTROL", DEFAULT_CONTROL));
}
