/*
 * Renames the keeper of a fork or of a restored backup. The keeper's memory was saved in another sandbox or another
 * installation and contains the name from there. The porter changes the name from outside while the keeper is frozen, so
 * that no process inside ever sees both names.
 */
#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Size of the buffer for an environment: far larger than any environment with which a keeper is started. */
#define ENVIRONMENT_MAX (128 * 1024)
#define HOSTNAME_MAX 64

static const char sandbox[] = "HOLDFAST_SANDBOX=", installation[] = "HOLDFAST_INSTALLATION=";

/* A change of one environment variable: its name, its old value and its new value. */
struct change {
  const char *variable, *old, *new;
};

struct environment {
  char text[ENVIRONMENT_MAX];
  size_t size;
  /* Address of the environment in the process's memory. */
  off_t start;
};

static int refused(const char *what) {
  errno = 0;
  return porter_failed(what);
}

/* Reads exactly `size` bytes, with several reads if needed. */
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

/*
 * Returns the position of the variable's value. The variable must occur exactly once, complete, and with this value;
 * otherwise returns -1.
 */
static ssize_t find_value(const struct environment *environment, const char *variable, const char *value) {
  const size_t name = strlen(variable);
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
  return same ? PORTER_DONE : refused("the process's environment differs from what was written");
}

/* Changes the variable's value in place. The keeper has a pointer to the value and sees the change. */
static int rename_in(int process, int memory, const struct change *change) {
  static struct environment environment;
  const char *new = change->new;
  int status = read_environment(process, memory, &environment);
  if (status != PORTER_DONE) return status;
  ssize_t at = find_value(&environment, change->variable, change->old);
  if (at < 0) return refused("the process's environment does not have that name exactly once");
  const size_t size = strlen(new);
  memcpy(environment.text + at, new, size);
  ssize_t written = pwrite(memory, new, size, environment.start + at);
  if (written < 0) return porter_failed("the process's memory can't be written");
  if ((size_t)written != size) return refused("the process's memory can't be written");
  return verify(process, &environment);
}

/* Opens the UTS namespace of the process. Fails if it is the namespace of the host. */
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
  const char *hostname = argv[2];
  int namespace = open_namespace(process);
  if (namespace < 0) return PORTER_FAILED;
  int memory = openat(process, "mem", O_RDWR | O_CLOEXEC);
  if (memory < 0) return porter_failed("the process's memory can't be opened");
  const struct change changes[] = {{sandbox, argv[0], argv[1]}, {installation, argv[3], argv[4]}};
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    if (!changes[i].old || strcmp(changes[i].old, changes[i].new) == 0) continue;
    int status = rename_in(process, memory, &changes[i]);
    if (status != PORTER_DONE) return status;
  }
  if (setns(namespace, CLONE_NEWUTS) < 0) return porter_failed("the process's namespace can't be entered");
  return sethostname(hostname, strlen(hostname)) == 0 ? PORTER_DONE : porter_failed("the host name can't be set");
}

/*
 * Renames the keeper with this pid and start time. Everything is accessed through the process's /proc directory, which
 * is opened before the start time is compared: it refers to the same process even if the pid is reused.
 */
int porter_rename_keeper(int argc, char **argv) {
  if (argc != 5 && argc != 7) return PORTER_USAGE;
  long long pid = porter_number(argv[0], 0x7fffffff);
  long long started = porter_number(argv[1], __LONG_LONG_MAX__ / 10);
  if (pid <= 0 || started < 0 || !*argv[2] || !*argv[4] || strlen(argv[4]) > HOSTNAME_MAX) return PORTER_USAGE;
  if (strlen(argv[2]) != strlen(argv[3])) return refused("the names are not of the same length");
  char *names[] = {argv[2], argv[3], argv[4], argc == 7 ? argv[5] : NULL, argc == 7 ? argv[6] : NULL};
  if (argc == 7 && strlen(argv[5]) != strlen(argv[6])) return refused("the names are not of the same length");
  int process = porter_process((pid_t)pid);
  if (process < 0) return errno == ENOENT ? PORTER_GONE : porter_failed("the process can't be examined");
  if (porter_field(process, PORTER_STARTED) != started) return PORTER_GONE;
  return rename_process(process, names);
}
