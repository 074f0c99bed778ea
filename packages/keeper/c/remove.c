/*
 * Recursive removal that never leaves the tree: every directory is entered by descriptor, symbolic links are unlinked
 * and not followed. Trees deeper than the descriptors allow are flattened: a directory that lies too deep is moved up to
 * the top, where the next pass finds it.
 */
#include "remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct sweep {
  const struct file_rules *rules;
  int top;
  unsigned moved;
  int error;
};

static bool is_dot(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static void note(struct sweep *sweep, int error) {
  if (sweep->error == 0) sweep->error = error;
}

static bool move_up(struct sweep *sweep, int dir, const char *name) {
  char moved[32];
  snprintf(moved, sizeof moved, ".holdfast-gone-%u", sweep->moved++);
  return renameat(dir, name, sweep->top, moved) == 0;
}

static void empty(struct sweep *sweep, int dir, int depth);

static bool remove_directory(struct sweep *sweep, int dir, const char *name, int depth) {
  if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return true;
  if (errno != ENOTEMPTY && errno != EEXIST) return false;
  if (depth >= REMOVE_DEPTH_MAX) return move_up(sweep, dir, name);
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  struct statx stat;
  if (stat_open(sweep->rules, fd, &stat).kind != ANSWER) {
    close(fd);
    errno = EBUSY;
    return false;
  }
  empty(sweep, fd, depth + 1);
  close(fd);
  return unlinkat(dir, name, AT_REMOVEDIR) == 0;
}

static bool remove_entry(struct sweep *sweep, int dir, const char *name, int depth) {
  if (unlinkat(dir, name, 0) == 0) return true;
  if (errno != EISDIR && errno != EPERM) return errno == ENOENT;
  return remove_directory(sweep, dir, name, depth);
}

/* Passes over the directory until one finds nothing, or finds only what can't be removed. */
static void empty(struct sweep *sweep, int dir, int depth) {
  _Alignas(struct dirent64) char buffer[4096];
  for (;;) {
    bool any = false;
    lseek(dir, 0, SEEK_SET);
    long size;
    while ((size = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0) {
      for (long at = 0; at < size;) {
        struct dirent64 *entry = (struct dirent64 *)(buffer + at);
        at += entry->d_reclen;
        if (is_dot(entry->d_name)) continue;
        any = true;
        if (!remove_entry(sweep, dir, entry->d_name, depth)) note(sweep, errno);
      }
    }
    if (size < 0) note(sweep, errno);
    if (!any || sweep->error != 0) return;
  }
}

int remove_tree(int dir, const void *argument) {
  const struct removal *removal = argument;
  struct sweep sweep = {.rules = removal->rules, .top = -1};
  if (unlinkat(dir, removal->name, 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  sweep.top = openat(dir, removal->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (sweep.top < 0) return errno;
  struct statx stat;
  if (stat_open(sweep.rules, sweep.top, &stat).kind != ANSWER) return EBUSY;
  empty(&sweep, sweep.top, 0);
  close(sweep.top);
  if (unlinkat(dir, removal->name, AT_REMOVEDIR) == 0) return 0;
  return sweep.error ? sweep.error : errno;
}
