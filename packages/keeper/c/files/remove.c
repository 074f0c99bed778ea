/*
 * Removes directory trees and never leaves the tree: every directory is entered by descriptor, and symbolic links are
 * unlinked, not followed. Each level of depth takes an open descriptor, so a directory that is too deep is moved to the
 * top of the tree, where the next pass removes it.
 */
#include "files/remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

struct sweep {
  const struct file_rules *rules;
  int top;
  /*
   * A directory that is moved to the top of the tree gets this number as part of its name. The number starts at a
   * random value, so that no process can occupy all possible names.
   */
  uint64_t moved;
  int error;
};

static bool is_dot(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static void note(struct sweep *sweep, int error) {
  if (sweep->error == 0) sweep->error = error;
}

/*
 * Moves a directory to the top of the tree. Without RENAME_NOREPLACE, which some file systems do not support, it may
 * replace another directory there. That is harmless, because only an empty directory can be replaced.
 */
static bool rename_up(const struct sweep *sweep, int dir, const char *name, const char *moved) {
  if (renameat2(dir, name, sweep->top, moved, RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  return renameat(dir, name, sweep->top, moved) == 0;
}

/* Moves a directory to an unused name at the top of the tree. */
static bool move_up(struct sweep *sweep, int dir, const char *name) {
  char moved[40];
  for (int i = 0; i < REMOVE_NAMES_MAX; i++) {
    snprintf(moved, sizeof moved, ".holdfast-gone-%016llx", (unsigned long long)sweep->moved++);
    if (rename_up(sweep, dir, name, moved)) return true;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) return false;
  }
  return false;
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
  if (errno != EISDIR && errno != EPERM) return false;
  return remove_directory(sweep, dir, name, depth);
}

/*
 * Empties a directory in passes, until a pass finds nothing or only entries that cannot be removed. The
 * number of passes is limited, because another process may keep adding entries.
 */
static void empty(struct sweep *sweep, int dir, int depth) {
  _Alignas(struct dirent64) char buffer[4096];
  for (int pass = 0; pass < REMOVE_PASSES_MAX; pass++) {
    bool any = false;
    lseek(dir, 0, SEEK_SET);
    long size;
    while ((size = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0) {
      for (long at = 0; at < size;) {
        struct dirent64 *entry = (struct dirent64 *)(buffer + at);
        at += entry->d_reclen;
        if (is_dot(entry->d_name)) continue;
        any = true;
        if (!remove_entry(sweep, dir, entry->d_name, depth) && errno != ENOENT) note(sweep, errno);
      }
    }
    if (size < 0) note(sweep, errno);
    if (!any || sweep->error != 0) return;
  }
  note(sweep, ENOTEMPTY);
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
  if (getrandom(&sweep.moved, sizeof sweep.moved, 0) < 0) sweep.moved = realtime_us();
  empty(&sweep, sweep.top, 0);
  close(sweep.top);
  if (unlinkat(dir, removal->name, AT_REMOVEDIR) == 0) return 0;
  return sweep.error ? sweep.error : errno;
}
