/*
 * A fork is restored from the memory of another sandbox, and its keeper still answers to that one's name. It is given its
 * own before it runs: from outside, while it is frozen, so that nothing inside ever sees both.
 */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Far more than a keeper is started with. */
#define ENVIRONMENT_MAX (128 * 1024)
#define HOSTNAME_MAX 64

static const char variable[] = "HOLDFAST_SANDBOX=";

struct environment {
  char text[ENVIRONMENT_MAX];
  size_t size;
  /* Where it is in the process's memory. */
  off_t start;
};

static int refused(const char *what) {
  errno = 0;
  return porter_failed(what);
}

/* All of it, from a file whose reads may be short. */
static bool read_at(int fd, char *buffer, size_t size, off_t at) {
  while (size > 0) {
    ssize_t got = pread(fd, buffer, size, at);
    if (got < 0) return false;
    if (got == 0) {
      errno = EIO;
      return false;
    }
    buffer += got;
    at += got;
    size -= (size_t)got;
  }
  return true;
}

static int read_environment(int process, int memory, struct environment *environment) {
  long long start = porter_field(process, PORTER_ENVIRONMENT_START), end = porter_field(process, PORTER_ENVIRONMENT_END);
  if (start <= 0 || end <= start) return refused("the process has no environment");
  if (end - start > ENVIRONMENT_MAX) return refused("the process's environment is too large");
  environment->start = (off_t)start;
  environment->size = (size_t)(end - start);
  if (read_at(memory, environment->text, environment->size, environment->start)) return PORTER_DONE;
  return porter_failed("the process's memory can't be read");
}

/* Where the value is, if the variable is there once, whole, and has it; -1 otherwise. */
static ssize_t find_value(const struct environment *environment, const char *value) {
  const size_t name = sizeof variable - 1;
  ssize_t found = -1;
  for (size_t at = 0, size; at < environment->size; at += size + 1) {
    const char *entry = environment->text + at;
    size = strnlen(entry, environment->size - at);
    if (size < name || memcmp(entry, variable, name) != 0) continue;
    bool whole = at + size < environment->size;
    if (found >= 0 || !whole || strcmp(entry + name, value) != 0) return -1;
    found = (ssize_t)(at + name);
  }
  return found;
}

static int verify(int process, const struct environment *expected) {
  static char text[ENVIRONMENT_MAX];
  int fd = openat(process, "environ", O_RDONLY | O_CLOEXEC);
  bool read = fd >= 0 && read_at(fd, text, expected->size, 0);
  if (!read) porter_failed("the process's environment can't be read");
  if (fd >= 0) close(fd);
  if (!read) return PORTER_FAILED;
  bool same = memcmp(text, expected->text, expected->size) == 0;
  return same ? PORTER_DONE : refused("the process's environment is not what was written");
}

/* The keeper has a pointer to the value, so the value is changed where it is. */
static int rename_in(int process, int memory, const char *old, const char *new) {
  static struct environment environment;
  int status = read_environment(process, memory, &environment);
  if (status != PORTER_DONE) return status;
  ssize_t at = find_value(&environment, old);
  if (at < 0) return refused("the process's environment does not have that name, or not once");
  const size_t size = strlen(new);
  memcpy(environment.text + at, new, size);
  ssize_t written = pwrite(memory, new, size, environment.start + at);
  if (written < 0) return porter_failed("the process's memory can't be written");
  if ((size_t)written != size) return refused("the process's memory can't be written");
  return verify(process, &environment);
}

/* Says so where the process has the namespace that the host's name is in. */
static int open_namespace(int process) {
  struct stat own, its;
  int fd = openat(process, "ns/uts", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &its) < 0 || stat("/proc/self/ns/uts", &own) < 0) {
    porter_failed("the process's namespace can't be opened");
  } else if (own.st_dev == its.st_dev && own.st_ino == its.st_ino) {
    refused("the process has no host name of its own");
  } else {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

static int rename_process(int process, char **argv) {
  const char *old = argv[0], *new = argv[1], *hostname = argv[2];
  int namespace = open_namespace(process);
  if (namespace < 0) return PORTER_FAILED;
  int memory = openat(process, "mem", O_RDWR | O_CLOEXEC);
  if (memory < 0) return porter_failed("the process's memory can't be opened");
  int status = rename_in(process, memory, old, new);
  if (status != PORTER_DONE) return status;
  if (setns(namespace, CLONE_NEWUTS) < 0) return porter_failed("the process's namespace can't be entered");
  return sethostname(hostname, strlen(hostname)) == 0 ? PORTER_DONE : porter_failed("the host name can't be set");
}

/*
 * Everything is reached through the directory whose start time was compared: it means that very process, whoever gets the
 * pid later.
 */
int porter_rename_keeper(int argc, char **argv) {
  if (argc != 5) return PORTER_USAGE;
  long long pid = porter_number(argv[0], 0x7fffffff);
  long long started = porter_number(argv[1], __LONG_LONG_MAX__ / 10);
  if (pid <= 0 || started < 0 || !*argv[2] || !*argv[4] || strlen(argv[4]) > HOSTNAME_MAX) return PORTER_USAGE;
  if (strlen(argv[2]) != strlen(argv[3])) return refused("the names are not of the same length");
  int process = porter_process((pid_t)pid);
  if (process < 0) return errno == ENOENT ? PORTER_GONE : porter_failed("the process can't be looked at");
  if (porter_field(process, PORTER_STARTED) != started) return PORTER_GONE;
  return rename_process(process, argv + 2);
}
