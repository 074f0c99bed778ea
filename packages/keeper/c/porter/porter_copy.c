/*
 * Copies the disk of a frozen sandbox. The sandbox's processes chose names, depth and sizes, so no paths are built:
 * every step is relative to an open directory, no symbolic link is followed, no mount is entered, and everything that
 * is created counts towards the size limit. Directories far above the current one are closed and reopened on the way
 * back, so that neither the stack nor the number of open files depends on the tree.
 */
#include "porter/porter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Maximum depth of a tree. Only a program that tries to break other programs creates a deeper tree. */
#define LEVELS_MAX 16384
/* Maximum number of levels that are open at once, with two descriptors each. */
#define LEVELS_OPEN 32
/* Minimum number of bytes that an inode adds to the size of the copy, because empty files can fill a disk too. */
#define INODE_BYTES 4096
#define BUFFER (1024 * 1024)
/* Number of bytes copied between two checks of the size limit. */
#define STEP (16 * BUFFER)

struct place {
  dev_t device;
  ino_t inode;
};

/* A directory that is being copied. */
struct level {
  struct stat stat;
  struct place made;
  long long charged;
  /* The source directory. NULL while it is closed because it is far above the current one. */
  DIR *from;
  /* The copy of the directory; -1 while `from` is closed. */
  int to;
  /* The position in the source directory at which reading resumes. */
  long next;
};

struct copy {
  /* The destination directory. */
  int top;
  struct level *levels;
  size_t depth, room;
  /* Search tree of the copied inodes that have several names, by source inode. The size limit of the copy also limits
   * their number. */
  void *links;
  long long bytes, max;
  /* Whether to leave out the attributes that tie an overlay's upper layer to its lower layer. */
  bool detached;
  int status;
};

/* An entry that was found and opened as O_PATH, and the place of its copy. */
struct item {
  int from;
  struct stat stat;
  int parent;
  const char *name;
  long long charged;
};

/* The copy of an inode that has several names. */
struct link {
  struct place found;
  struct file_handle made;
};

/* Prints a failure at once and sets the exit status. Always returns false, which a caller can return in turn. */
static bool failed(struct copy *copy, const char *what) {
  copy->status = porter_failed(what);
  return false;
}

static bool refused(struct copy *copy, const char *what) {
  errno = 0;
  return failed(copy, what);
}

static struct place place_of(const struct stat *stat) {
  return (struct place){stat->st_dev, stat->st_ino};
}

static bool is_at(int fd, struct place place) {
  struct stat stat;
  return fstat(fd, &stat) == 0 && stat.st_dev == place.device && stat.st_ino == place.inode;
}

static bool is_self_or_parent(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* ── The budget ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Sets the number of bytes that an inode adds to the size of the copy. Returns false if the copy then exceeds its
 * limit. */
static bool charge(struct copy *copy, long long *charged, long long bytes) {
  if (bytes < INODE_BYTES) bytes = INODE_BYTES;
  copy->bytes += bytes - *charged;
  *charged = bytes;
  if (copy->bytes <= copy->max) return true;
  refused(copy, "the copy would exceed its size limit");
  copy->status = PORTER_TOO_MUCH;
  return false;
}

static bool charge_made(struct copy *copy, long long *charged, int made) {
  struct stat stat;
  if (fstat(made, &stat) < 0) return failed(copy, "the copy can't be examined");
  return charge(copy, charged, (long long)stat.st_blocks * 512);
}

/* ── Properties ────────────────────────────────────────────────────────────────────────────────────────────────── */

struct fd_path {
  char text[32];
};

/*
 * Returns a path that refers to a descriptor. Needed for system calls that accept only a path, and for those that
 * accept a descriptor but not one opened with O_PATH.
 */
static struct fd_path path_of(int fd) {
  struct fd_path path;
  snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
  return path;
}

/*
 * Extended attributes that tie an overlay's upper layer to one particular lower layer, for example by the handles of
 * that layer's files.
 */
static const char *const by_handle[] = {
    "trusted.overlay.origin", "trusted.overlay.nlink", "trusted.overlay.impure", "trusted.overlay.uuid",
};

/*
 * Returns whether an extended attribute is copied. `trusted.overlay.upper` is never copied: it contains the handle of a
 * directory in the upper layer, and in the copy that handle would still refer to the original sandbox's directory. The
 * attributes in `by_handle` are not copied into a detached copy. A detached copy will be mounted over another copy of
 * the lower layer, in which the files have other handles, and an overlay hides every directory with a handle that does
 * not match.
 */
static bool is_copied(const struct copy *copy, const char *attribute) {
  if (strcmp(attribute, "trusted.overlay.upper") == 0) return false;
  for (size_t i = 0; copy->detached && i < sizeof by_handle / sizeof by_handle[0]; i++) {
    if (strcmp(attribute, by_handle[i]) == 0) return false;
  }
  return true;
}

static bool keep_attributes(const struct copy *copy, int from, int to) {
  static char names[XATTR_LIST_MAX], value[XATTR_SIZE_MAX];
  struct fd_path source = path_of(from), target = path_of(to);
  ssize_t size = listxattr(source.text, names, sizeof names);
  if (size < 0) return errno == EOPNOTSUPP;
  for (const char *name = names; name < names + size; name += strlen(name) + 1) {
    if (!is_copied(copy, name)) continue;
    ssize_t length = getxattr(source.text, name, value, sizeof value);
    if (length < 0 || setxattr(target.text, name, value, (size_t)length, 0) < 0) return false;
  }
  return true;
}

/*
 * Copies owner, mode, extended attributes and times. The order matters: changing the owner clears mode bits and file
 * capabilities, and every change affects the times.
 */
static bool keep_properties(const struct copy *copy, int from, int to, const struct stat *stat) {
  struct fd_path target = path_of(to);
  const struct timespec times[2] = {stat->st_atim, stat->st_mtim};
  if (fchownat(to, "", stat->st_uid, stat->st_gid, AT_EMPTY_PATH) < 0) return false;
  if (!S_ISLNK(stat->st_mode) && chmod(target.text, stat->st_mode & 07777) < 0) return false;
  return keep_attributes(copy, from, to) && utimensat(to, "", times, AT_EMPTY_PATH) == 0;
}

/* ── Content ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Copies the start of a range, possibly all of it. Returns the number of copied bytes; -1 with errno if the copy fails.
 */
static ssize_t copy_some(int from, int to, off_t at, size_t size) {
  static char buffer[BUFFER];
  off_t source = at, target = at;
  ssize_t done = copy_file_range(from, &source, to, &target, size, 0);
  if (done > 0) return done;
  ssize_t got = pread(from, buffer, size < BUFFER ? size : BUFFER, at);
  if (got > 0) return pwrite(to, buffer, (size_t)got, at);
  if (got == 0) errno = EBUSY;
  return -1;
}

/* Copies the data of a file. Holes stay holes. The size limit of the copy is checked before data is written. */
static bool copy_data(struct copy *copy, struct item *item, int from, int to) {
  const off_t size = item->stat.st_size;
  long long written = 0;
  for (off_t at = 0; at < size;) {
    at = lseek(from, at, SEEK_DATA);
    if (at < 0 && errno == ENXIO) return true;
    off_t end = at < 0 ? -1 : lseek(from, at, SEEK_HOLE);
    if (end < 0) return failed(copy, "a file's data can't be found");
    while (at < end && at < size) {
      size_t step = end - at < STEP ? (size_t)(end - at) : STEP;
      if (!charge(copy, &item->charged, written + (long long)step)) return false;
      ssize_t done = copy_some(from, to, at, step);
      if (done <= 0) return failed(copy, "a file can't be copied");
      at += done;
      written += done;
    }
  }
  return true;
}

/* Copies the content of a file. Shares blocks with the source if the file system supports it. */
static bool copy_content(struct copy *copy, struct item *item, int to) {
  struct fd_path source = path_of(item->from);
  int from = open(source.text, O_RDONLY | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
  if (from < 0) return failed(copy, "a file can't be opened");
  bool done = ioctl(to, FICLONE, from) == 0;
  if (!done && ftruncate(to, item->stat.st_size) < 0) {
    failed(copy, "a file can't be given its size");
  } else if (!done) {
    done = copy_data(copy, item, from, to);
  }
  close(from);
  return done;
}

/* ── Hard links ────────────────────────────────────────────────────────────────────────────────────────────────── */

static int compare_links(const void *left, const void *right) {
  const struct place *one = &((const struct link *)left)->found, *other = &((const struct link *)right)->found;
  if (one->device != other->device) return one->device < other->device ? -1 : 1;
  return one->inode < other->inode ? -1 : one->inode > other->inode;
}

/*
 * Remembers the copy of an inode with several names by its file handle, so that its other names become hard links. A
 * path would not do, because it may change; an open descriptor for every such copy would need too many descriptors.
 */
static bool remember(struct copy *copy, const struct item *item, int made) {
  int mount;
  struct file_handle unknown = {.handle_bytes = 0};
  name_to_handle_at(made, "", &unknown, &mount, AT_EMPTY_PATH);
  struct link *link = malloc(sizeof *link + unknown.handle_bytes);
  if (!link) return failed(copy, "no memory for a link");
  link->found = place_of(&item->stat);
  link->made.handle_bytes = unknown.handle_bytes;
  if (name_to_handle_at(made, "", &link->made, &mount, AT_EMPTY_PATH) == 0) {
    if (tsearch(link, &copy->links, compare_links)) return true;
    errno = ENOMEM;
  }
  failed(copy, "a link can't be remembered");
  free(link);
  return false;
}

static struct link *find_link(const struct copy *copy, const struct stat *stat) {
  const struct link wanted = {.found = place_of(stat)};
  struct link **node = stat->st_nlink > 1 ? tfind(&wanted, &copy->links, compare_links) : NULL;
  return node ? *node : NULL;
}

static bool link_again(struct copy *copy, struct link *link, const struct item *item) {
  int made = open_by_handle_at(copy->top, &link->made, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  bool linked = made >= 0 && linkat(made, "", item->parent, item->name, AT_EMPTY_PATH) == 0;
  if (!linked) failed(copy, "a link can't be made");
  if (made >= 0) close(made);
  return linked;
}

/* ── One entry ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Opens an entry as O_PATH. Opening a device or pipe in any other way could have side effects. */
static int open_inside(int parent, const char *name) {
  struct open_how how = {
      .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
      .resolve = RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
  };
  return (int)syscall(SYS_openat2, parent, name, &how, sizeof how);
}

static int make_symlink(const struct item *item) {
  char target[PATH_MAX + 1];
  ssize_t size = readlinkat(item->from, "", target, sizeof target - 1);
  if (size < 0) return -1;
  target[size] = 0;
  return symlinkat(target, item->parent, item->name);
}

/* Creates the copy of an entry. No other user can access it until its owner and mode are set. */
static int make(const struct item *item) {
  const mode_t type = item->stat.st_mode & S_IFMT;
  if (type == S_IFREG) {
    return openat(item->parent, item->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  }
  int made = type == S_IFLNK ? make_symlink(item) : mknodat(item->parent, item->name, type | 0600, 0);
  return made < 0 ? -1 : open_inside(item->parent, item->name);
}

static bool complete(struct copy *copy, struct item *item, int made) {
  if (S_ISREG(item->stat.st_mode) && !copy_content(copy, item, made)) return false;
  if (!keep_properties(copy, item->from, made, &item->stat)) return failed(copy, "an entry's metadata can't be copied");
  if (!charge_made(copy, &item->charged, made)) return false;
  return item->stat.st_nlink == 1 || remember(copy, item, made);
}

/*
 * Returns whether an entry is a real device. A character device with number zero is not: it is an overlay's whiteout.
 */
static bool is_device(const struct stat *stat) {
  return S_ISBLK(stat->st_mode) || (S_ISCHR(stat->st_mode) && stat->st_rdev != 0);
}

static bool copy_leaf(struct copy *copy, struct item *item) {
  if (is_device(&item->stat)) return refused(copy, "there is a device in the tree");
  struct link *link = find_link(copy, &item->stat);
  if (link) return link_again(copy, link, item);
  if (!charge(copy, &item->charged, 0)) return false;
  int made = make(item);
  if (made < 0) return failed(copy, "an entry can't be made");
  bool done = complete(copy, item, made);
  close(made);
  return done;
}

/* ── The tree ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static DIR *open_stream(int parent, const char *name) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
  DIR *stream = fd < 0 ? NULL : fdopendir(fd);
  if (!stream && fd >= 0) close(fd);
  return stream;
}

static int open_made(int parent, const char *name) {
  return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void put_aside(struct level *level) {
  if (level->from) {
    level->next = telldir(level->from);
    closedir(level->from);
  }
  if (level->to >= 0) close(level->to);
  level->from = NULL;
  level->to = -1;
}

/*
 * Reopens the source and destination directories of the level above `level`, which were closed to save descriptors.
 * Fails if a path now leads to another directory than before, because neither tree may change during the copy.
 */
static bool take_up(struct copy *copy, const struct level *level) {
  struct level *above = &copy->levels[copy->depth - 2];
  above->from = open_stream(dirfd(level->from), "..");
  above->to = open_made(level->to, "..");
  if (!above->from || above->to < 0) return failed(copy, "a directory can't be opened again");
  if (!is_at(dirfd(above->from), place_of(&above->stat)) || !is_at(above->to, above->made)) {
    return refused(copy, "the tree changed during the copy");
  }
  seekdir(above->from, above->next);
  return true;
}

static struct level *add_level(struct copy *copy) {
  if (copy->depth == copy->room) {
    size_t room = copy->room ? copy->room * 2 : LEVELS_OPEN;
    struct level *levels = realloc(copy->levels, room * sizeof *levels);
    if (!levels) return NULL;
    copy->levels = levels;
    copy->room = room;
  }
  if (copy->depth >= LEVELS_OPEN) put_aside(&copy->levels[copy->depth - LEVELS_OPEN]);
  return &copy->levels[copy->depth++];
}

static bool enter(struct copy *copy, struct item *item) {
  struct stat made;
  if (copy->depth == LEVELS_MAX) return refused(copy, "the tree is too deep");
  if (!charge(copy, &item->charged, 0)) return false;
  if (mkdirat(item->parent, item->name, 0700) < 0) return failed(copy, "a directory can't be made");
  struct level *level = add_level(copy);
  if (!level) {
    errno = ENOMEM;
    return failed(copy, "a directory can't be entered");
  }
  *level = (struct level){.stat = item->stat, .charged = item->charged};
  level->from = open_stream(item->from, ".");
  level->to = open_made(item->parent, item->name);
  if (!level->from || level->to < 0 || fstat(level->to, &made) < 0) return failed(copy, "a directory can't be opened");
  level->made = place_of(&made);
  return true;
}

/*
 * Finishes a directory. Its own properties are set only after all entries were added, because adding entries would
 * change the times.
 */
static bool leave(struct copy *copy) {
  struct level *level = &copy->levels[copy->depth - 1];
  if (!keep_properties(copy, dirfd(level->from), level->to, &level->stat)) {
    return failed(copy, "a directory's metadata can't be copied");
  }
  if (!charge_made(copy, &level->charged, level->to)) return false;
  if (copy->depth > 1 && !copy->levels[copy->depth - 2].from && !take_up(copy, level)) return false;
  put_aside(level);
  copy->depth--;
  return true;
}

static bool copy_entry(struct copy *copy, int from, int to, const char *name) {
  struct item item = {.from = open_inside(from, name), .parent = to, .name = name};
  if (item.from < 0) {
    if (errno == EXDEV) return refused(copy, "a mount lies inside the tree");
    if (errno != ENOENT || copy->depth > 0) return failed(copy, "an entry can't be opened");
    copy->status = PORTER_GONE;
    return false;
  }
  bool done = fstat(item.from, &item.stat) == 0 || failed(copy, "an entry can't be examined");
  if (done) done = S_ISDIR(item.stat.st_mode) ? enter(copy, &item) : copy_leaf(copy, &item);
  close(item.from);
  return done;
}

static bool copy_named(struct copy *copy, int from, const char *name) {
  if (!copy_entry(copy, from, copy->top, name)) return false;
  while (copy->depth > 0) {
    struct level *level = &copy->levels[copy->depth - 1];
    errno = 0;
    struct dirent *entry = readdir(level->from);
    if (!entry && errno) return failed(copy, "a directory can't be read");
    if (!entry) {
      if (!leave(copy)) return false;
    } else if (!is_self_or_parent(entry->d_name)) {
      if (!copy_entry(copy, dirfd(level->from), level->to, entry->d_name)) return false;
    }
  }
  return true;
}

static void copy_end(struct copy *copy) {
  while (copy->depth > 0) put_aside(&copy->levels[--copy->depth]);
  free(copy->levels);
  tdestroy(copy->links, free);
}

static bool is_name(const char *text) {
  return *text && !strchr(text, '/') && !is_self_or_parent(text);
}

/* Copies a tree. After a failure the partial copy stays, for the caller to remove. */
static int copy_trees(int argc, char **argv, bool detached) {
  long long max = argc < 4 ? -1 : porter_number(argv[2], __LONG_LONG_MAX__ / 10);
  if (max < 0) return PORTER_USAGE;
  for (int i = 3; i < argc; i++) {
    if (!is_name(argv[i])) return PORTER_USAGE;
  }
  /* O_NOFOLLOW is needed because a sandbox may be able to replace the source directory with a symbolic link. */
  int from = open(argv[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (from < 0) return errno == ENOENT ? PORTER_GONE : porter_failed("the directory to copy from can't be opened");
  struct copy copy = {.top = open_made(AT_FDCWD, argv[1]), .max = max, .detached = detached, .status = PORTER_DONE};
  if (copy.top < 0) return porter_failed("the directory to copy to can't be opened");
  for (int i = 3; i < argc && copy.status == PORTER_DONE; i++) copy_named(&copy, from, argv[i]);
  copy_end(&copy);
  if (copy.status != PORTER_DONE) return copy.status;
  printf("%lld\n", copy.bytes);
  return fflush(stdout) == 0 ? PORTER_DONE : porter_failed("the size can't be written");
}

int porter_copy(int argc, char **argv) {
  return copy_trees(argc, argv, false);
}

int porter_copy_detached(int argc, char **argv) {
  return copy_trees(argc, argv, true);
}
