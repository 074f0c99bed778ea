/*
 * Measures the disk usage of a tree. Processes keep changing the tree and have chosen its names and depth, so no
 * symbolic link is followed, no mount is entered, and entries that disappear during the measurement are skipped.
 * Directories far above the current one are closed and reopened by handle, so that the number of open files does not
 * depend on the tree.
 */
#include "porter/porter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Maximum depth of a tree. Only a program that tries to break other programs creates a deeper tree. */
#define LEVELS_MAX 16384
#define LEVELS_OPEN 32
/* Maximum number of inodes with several hard links to remember. This many take about half a gigabyte of memory. */
#define LINKS_MAX (4 * 1024 * 1024)
#define STAT_MASK (STATX_TYPE | STATX_NLINK | STATX_INO | STATX_BLOCKS)

struct handle {
  struct file_handle head;
  unsigned char bytes[MAX_HANDLE_SZ];
};

/*
 * A directory that is being read. While it is closed because it is far above the current one, only its handle
 * and the position at which reading resumes are kept.
 */
struct level {
  DIR *stream;
  struct handle handle;
  long next;
};

struct link {
  uint64_t inode;
  uint32_t major, minor;
};

struct tally {
  int top;
  struct level *levels;
  size_t depth, room;
  void *links;
  size_t link_count;
  unsigned long long bytes, files;
  int status;
};

/* Prints a failure at once and sets the exit status. Always returns false, which a caller can return in turn. */
static bool failed(struct tally *tally, const char *what) {
  tally->status = porter_failed(what);
  return false;
}

static bool refused(struct tally *tally, const char *what) {
  errno = 0;
  return failed(tally, what);
}

static bool vanished(void) {
  return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EXDEV || errno == ESTALE;
}

/* ── Which entries count ─────────────────────────────────────────────────────────────────────────────────────────── */

static int compare_links(const void *left, const void *right) {
  const struct link *one = left, *other = right;
  if (one->major != other->major) return one->major < other->major ? -1 : 1;
  if (one->minor != other->minor) return one->minor < other->minor ? -1 : 1;
  return one->inode < other->inode ? -1 : one->inode > other->inode;
}

/*
 * Sets `new` to whether an inode with several names is found for the first time. Returns false if the inode cannot be
 * remembered.
 */
static bool is_new(struct tally *tally, const struct statx *stat, bool *new) {
  const struct link wanted = {stat->stx_ino, stat->stx_dev_major, stat->stx_dev_minor};
  *new = !tfind(&wanted, &tally->links, compare_links);
  if (!*new) return true;
  if (tally->link_count == LINKS_MAX) return refused(tally, "the tree has too many files with several names");
  struct link *link = malloc(sizeof *link);
  if (link) *link = wanted;
  if (!link || !tsearch(link, &tally->links, compare_links)) {
    free(link);
    errno = ENOMEM;
    return failed(tally, "no memory for a file with several names");
  }
  tally->link_count++;
  return true;
}

static bool count(struct tally *tally, const struct statx *stat) {
  bool directory = S_ISDIR(stat->stx_mode), new = true;
  if (!directory && stat->stx_nlink > 1 && !is_new(tally, stat, &new)) return false;
  if (new) tally->bytes += (unsigned long long)stat->stx_blocks * 512;
  if (new && !directory) tally->files++;
  return true;
}

/* ── The tree ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static int open_inside(int parent, const char *name) {
  struct open_how how = {
      .flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC,
      .resolve = RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
  };
  return (int)syscall(SYS_openat2, parent, name, &how, sizeof how);
}

static bool put_aside(struct tally *tally, struct level *level) {
  int mount;
  if (!level->stream) return true;
  level->handle.head.handle_bytes = sizeof level->handle.bytes;
  if (name_to_handle_at(dirfd(level->stream), "", &level->handle.head, &mount, AT_EMPTY_PATH) < 0) {
    return failed(tally, "a directory can't be remembered");
  }
  level->next = telldir(level->stream);
  closedir(level->stream);
  level->stream = NULL;
  return true;
}

/*
 * Reopens the directory of a level. If the directory no longer exists, the level's stream stays NULL, because nothing
 * is left to read.
 */
static bool take_up(struct tally *tally, struct level *level) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC;
  int fd = open_by_handle_at(tally->top, &level->handle.head, flags);
  if (fd < 0 && vanished()) return true;
  level->stream = fd < 0 ? NULL : fdopendir(fd);
  if (!level->stream) return failed(tally, "a directory can't be opened again");
  seekdir(level->stream, level->next);
  return true;
}

static bool make_room(struct tally *tally) {
  if (tally->depth == LEVELS_MAX) return refused(tally, "the tree is too deep");
  if (tally->depth < tally->room) return true;
  size_t room = tally->room ? tally->room * 2 : LEVELS_OPEN;
  struct level *levels = realloc(tally->levels, room * sizeof *levels);
  if (!levels) return failed(tally, "no memory for a directory");
  tally->levels = levels;
  tally->room = room;
  return true;
}

/* Takes ownership of `fd`. */
static bool enter(struct tally *tally, int fd) {
  bool fits = make_room(tally);
  if (fits && tally->depth >= LEVELS_OPEN) fits = put_aside(tally, &tally->levels[tally->depth - LEVELS_OPEN]);
  DIR *stream = fits ? fdopendir(fd) : NULL;
  if (fits && !stream) failed(tally, "a directory can't be read");
  if (stream) {
    tally->levels[tally->depth++].stream = stream;
  } else {
    close(fd);
  }
  return stream;
}

static bool leave(struct tally *tally) {
  closedir(tally->levels[--tally->depth].stream);
  /* If the directory of a level above no longer exists, that level is left as well. */
  while (tally->depth > 0) {
    struct level *above = &tally->levels[tally->depth - 1];
    if (!above->stream && !take_up(tally, above)) return false;
    if (above->stream) break;
    tally->depth--;
  }
  return true;
}

static bool visit(struct tally *tally, int parent, const char *name) {
  struct statx stat;
  const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return true;
  if (statx(parent, name, flags, STAT_MASK, &stat) < 0) return vanished() || failed(tally, "an entry can't be examined");
  if (stat.stx_attributes & STATX_ATTR_MOUNT_ROOT) return true;
  if (!count(tally, &stat)) return false;
  if (!S_ISDIR(stat.stx_mode)) return true;
  int fd = open_inside(parent, name);
  if (fd < 0) return vanished() || failed(tally, "a directory can't be opened");
  return enter(tally, fd);
}

static bool read_on(struct tally *tally) {
  DIR *stream = tally->levels[tally->depth - 1].stream;
  errno = 0;
  struct dirent *entry = readdir(stream);
  if (entry) return visit(tally, dirfd(stream), entry->d_name);
  if (errno && !vanished()) return failed(tally, "a directory can't be read");
  return leave(tally);
}

static void tally_tree(struct tally *tally) {
  struct statx stat;
  int fd = fcntl(tally->top, F_DUPFD_CLOEXEC, 3);
  if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STAT_MASK, &stat) < 0) {
    failed(tally, "the tree can't be examined");
    return;
  }
  if (!count(tally, &stat) || !enter(tally, fd)) return;
  while (tally->depth > 0 && read_on(tally)) continue;
}

int porter_usage(int argc, char **argv) {
  if (argc != 1) return PORTER_USAGE;
  struct tally tally = {.top = open(argv[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), .status = PORTER_DONE};
  if (tally.top < 0) return porter_failed("the tree can't be opened");
  tally_tree(&tally);
  for (; tally.depth > 0; tally.depth--) {
    if (tally.levels[tally.depth - 1].stream) closedir(tally.levels[tally.depth - 1].stream);
  }
  free(tally.levels);
  tdestroy(tally.links, free);
  if (tally.status == PORTER_DONE) printf("%llu %llu\n", tally.bytes, tally.files);
  return tally.status;
}
