#include "porter/porter_instance.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "porter/porter.h"

int instance_mounts(const char *pid, const char *started, int *namespace) {
  struct stat own, its;
  long long number = porter_number(pid, 0x7fffffff), start = porter_number(started, __LONG_LONG_MAX__ / 10);
  if (number <= 0 || start < 0) return PORTER_USAGE;
  int process = porter_process((pid_t)number);
  if (process < 0) return errno == ENOENT ? PORTER_GONE : porter_failed("the process can't be examined");
  if (porter_field(process, PORTER_STARTED) != start) return PORTER_GONE;
  *namespace = openat(process, "ns/mnt", O_RDONLY | O_CLOEXEC);
  if (*namespace < 0 && (errno == ENOENT || errno == ESRCH)) return PORTER_GONE;
  if (*namespace < 0 || fstat(*namespace, &its) < 0 || stat("/proc/self/ns/mnt", &own) < 0) {
    return porter_failed("the process's mounts can't be examined");
  }
  close(process);
  if (own.st_dev != its.st_dev || own.st_ino != its.st_ino) return PORTER_DONE;
  errno = 0;
  return porter_failed("the process has no mounts of its own");
}

int instance_enter(int namespace, int *root) {
  if (setns(namespace, CLONE_NEWNS) < 0) return porter_failed("the process's mounts can't be entered");
  *root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *root < 0 ? porter_failed("the root of the process can't be opened") : PORTER_DONE;
}
