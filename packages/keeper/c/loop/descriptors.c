#include "loop/descriptors.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop/limits.h"

/*
 * Closes all descriptors from `first` on, one by one if the kernel has no close_range. The loop may stop at the limit
 * of descriptors: the kernel assigns the lowest free number, so no descriptor has a higher one.
 */
void descriptors_close_from(unsigned first) {
  struct rlimit files;
  if (syscall(SYS_close_range, first, ~0u, 0u) == 0) return;
  unsigned end = DESCRIPTORS_MAX;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < end) end = (unsigned)files.rlim_cur;
  for (unsigned fd = first; fd < end; fd++) close((int)fd);
}

bool descriptors_scarce(int fd) {
  struct rlimit files;
  return getrlimit(RLIMIT_NOFILE, &files) == 0 && (rlim_t)fd + DESCRIPTORS_RESERVED >= files.rlim_cur;
}
