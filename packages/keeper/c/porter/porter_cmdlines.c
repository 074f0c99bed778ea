/*
 * Prints the command lines of processes and, for each process, the exec id in its environment. Command line and
 * environment are in the process's own memory, and reading them can block as long as the process hangs in the kernel. A
 * separate porter therefore reads them, so that the caller can stop waiting. Prints one line for each process: pid,
 * exec id or a dash, and the command line in hex.
 */
#include "porter/porter.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loop/limits.h"

#define EXEC_VARIABLE "HOLDFAST_EXEC="
/* Size of the buffer for an environment: larger than any environment that a command can be given. */
#define ENVIRONMENT_MAX (EXEC_STRINGS_MAX + 64u * KIB)

static size_t read_cmdlines(int process, const char *name, char *text, size_t room) {
  size_t size = 0;
  ssize_t got;
  int fd = openat(process, name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  while (size < room && (got = read(fd, text + size, room - size)) > 0) size += (size_t)got;
  close(fd);
  return size;
}

static bool is_id(const char *text, size_t size) {
  if (size == 0 || size > EXEC_ID_MAX) return false;
  const char *letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  for (size_t i = 0; i < size; i++) {
    if (!text[i] || !strchr(letters, text[i])) return false;
  }
  return true;
}

/*
 * Finds the first value of the exec id's variable and returns its size; 0 if the variable is not set or its
 * value is not an id.
 */
static size_t exec_id(const char *environment, size_t size, const char **id) {
  const size_t prefix = strlen(EXEC_VARIABLE);
  for (size_t at = 0; at < size;) {
    const char *end = memchr(environment + at, 0, size - at);
    size_t length = end ? (size_t)(end - environment) - at : size - at;
    if (length > prefix && memcmp(environment + at, EXEC_VARIABLE, prefix) == 0) {
      *id = environment + at + prefix;
      return is_id(*id, length - prefix) ? length - prefix : 0;
    }
    at += length + 1;
  }
  return 0;
}

static void print_cmdlines(const char *pid, int process) {
  static char environment[ENVIRONMENT_MAX];
  char line[COMMAND_LINE_MAX];
  const char *id = "-";
  size_t id_size = exec_id(environment, read_cmdlines(process, "environ", environment, sizeof environment), &id);
  size_t size = read_cmdlines(process, "cmdline", line, sizeof line);
  printf("%s %.*s ", pid, id_size > 0 ? (int)id_size : 1, id_size > 0 ? id : "-");
  for (size_t i = 0; i < size; i++) printf("%02x", (unsigned char)line[i]);
  putchar('\n');
}

/* Prints the command lines of the processes with these pids and start times. Skips processes that no longer exist. */
int porter_cmdlines(int argc, char **argv) {
  if (argc < 2 || argc % 2 != 0) return PORTER_USAGE;
  for (int i = 0; i < argc; i += 2) {
    long long pid = porter_number(argv[i], 0x7fffffff), started = porter_number(argv[i + 1], __LONG_LONG_MAX__ / 10);
    if (pid <= 0 || started < 0) return PORTER_USAGE;
    int process = porter_process((pid_t)pid);
    if (process < 0) continue;
    if (porter_field(process, PORTER_STARTED) == started) print_cmdlines(argv[i], process);
    close(process);
  }
  return PORTER_DONE;
}
