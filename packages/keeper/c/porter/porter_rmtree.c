/*
 * Removes the files of a sandbox. Names and depth were chosen by the sandbox's processes, so no paths are built: every
 * step is relative to an open directory, no symbolic link is followed and no mount is entered. A directory that lies
 * too deep is moved to the top of the tree and removed from there, so that neither the stack nor the number of open
 * files depends on the tree.
 */
#include "porter/porter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH_MAX 64
/*
 * Maximum number of passes over one directory. Each pass reduces the depth of a very deep tree by one level.
 * The limit prevents entries that are added during the removal from prolonging it forever.
 */
#define PASSES_MAX 100000
#define NAMES_MAX 100

struct removal {
  int top;
  /*
   * A directory that is moved to the top of the tree gets this number as part of its name. The number starts at a
   * random value, so that no process can occupy all possible names.
   */
  uint64_t moved;
};

static int open_inside(int parent, const char *name) {
  struct open_how how = {
      .flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
      .resolve = RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
  };
  return (int)syscall(SYS_openat2, parent, name, &how, sizeof how);
}

static bool is_self_or_parent(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Moves a directory to an unused name at the top of the tree. */
static int move_up(struct removal *removal, int parent, const char *name) {
  char fresh[64];
  for (int i = 0; i < NAMES_MAX; i++) {
    snprintf(fresh, sizeof fresh, ".holdfast-removing-%016llx", (unsigned long long)removal->moved++);
    if (renameat2(parent, name, removal->top, fresh, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EEXIST) return -1;
  }
  return -1;
}

static int empty(struct removal *removal, int dir, int depth);

static int remove_directory(struct removal *removal, int parent, const char *name, int depth) {
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
  if (errno != ENOTEMPTY && errno != EEXIST) return -1;
  if (depth >= DEPTH_MAX) return move_up(removal, parent, name);
  int dir = open_inside(parent, name);
  if (dir < 0) return errno == ENOENT ? 0 : -1;
  if (empty(removal, dir, depth + 1) < 0) return -1;
  return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

static int remove_entry(struct removal *removal, int parent, const struct dirent *entry, int depth) {
  if (entry->d_type != DT_DIR) {
    if (unlinkat(parent, entry->d_name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR) return -1;
  }
  return remove_directory(removal, parent, entry->d_name, depth);
}

/*
 * Empties a directory, and takes ownership of `dir`. Entries that are added or moved up while a directory is
 * read may be missed in that pass, so passes are repeated until one finds nothing.
 */
static int empty(struct removal *removal, int dir, int depth) {
  DIR *stream = fdopendir(dir);
  if (!stream) {
    close(dir);
    return -1;
  }
  int result = -1;
  for (int pass = 0; pass < PASSES_MAX; pass++) {
    bool found = false;
    struct dirent *entry;
    while (errno = 0, (entry = readdir(stream))) {
      if (is_self_or_parent(entry->d_name)) continue;
      found = true;
      if (remove_entry(removal, dir, entry, depth) < 0) goto out;
    }
    if (errno) goto out;
    if (!found) {
      result = 0;
      goto out;
    }
    rewinddir(stream);
  }
  errno = EBUSY;
out:;
  int error = errno;
  closedir(stream);
  errno = error;
  return result;
}

/*
 * Reports a failed removal. EXDEV and EBUSY have a message of their own. EXDEV: a directory is on another mount. EBUSY:
 * an entry is a mount point, or entries were added in every pass.
 */
static int removal_failed(void) {
  if (errno != EXDEV && errno != EBUSY) return porter_failed("the tree can't be removed");
  errno = 0;
  return porter_failed("a mount lies inside the tree, or the tree is being written to");
}

static int remove_at(int parent, const char *name) {
  if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return PORTER_DONE;
  if (errno != EISDIR) return removal_failed();
  struct removal removal = {.top = open_inside(parent, name)};
  if (removal.top < 0) return removal_failed();
  if (getrandom(&removal.moved, sizeof removal.moved, 0) < 0) return removal_failed();
  int dir = fcntl(removal.top, F_DUPFD_CLOEXEC, 3);
  if (dir < 0 || empty(&removal, dir, 0) < 0) return removal_failed();
  return unlinkat(parent, name, AT_REMOVEDIR) == 0 ? PORTER_DONE : removal_failed();
}

int porter_rmtree(int argc, char **argv) {
  if (argc != 1) return PORTER_USAGE;
  size_t size = strlen(argv[0]);
  while (size > 1 && argv[0][size - 1] == '/') argv[0][--size] = 0;
  char *slash = strrchr(argv[0], '/');
  if (argv[0][0] != '/' || !slash[1] || is_self_or_parent(slash + 1)) return PORTER_USAGE;
  *slash = 0;
  int parent = open(slash == argv[0] ? "/" : argv[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return errno == ENOENT ? PORTER_DONE : porter_failed("the tree's parent can't be opened");
  return remove_at(parent, slash + 1);
}
