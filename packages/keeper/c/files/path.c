#include "files/path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define RESERVED_NAME ".holdfast"
#define STAT_MASK (STATX_BASIC_STATS | STATX_MNT_ID)

static bool is_reserved(const struct file_rules *rules, const struct statx *stat) {
  if (!rules->reserve) return false;
  if (rules->own_mount && (stat->stx_mask & STATX_MNT_ID) && stat->stx_mnt_id == rules->mount) return true;
  uint64_t dev = makedev(stat->stx_dev_major, stat->stx_dev_minor);
  for (size_t i = 0; i < rules->reserved_count; i++) {
    if (rules->reserved[i].dev == dev && rules->reserved[i].ino == stat->stx_ino) return true;
  }
  return false;
}

static struct outcome reserved(void) {
  return refused(RESERVED_PATH, "this path belongs to the keeper");
}

struct outcome stat_open(const struct file_rules *rules, int fd, struct statx *stat) {
  if (statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STAT_MASK, stat) < 0) return system_error(errno);
  return is_reserved(rules, stat) ? reserved() : answered();
}

static bool is_on(int fd, uint64_t mount) {
  struct statx stat;
  if (statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &stat) < 0) return false;
  return (stat.stx_mask & STATX_MNT_ID) && stat.stx_mnt_id == mount;
}

/*
 * Opens a path below `dir`. If only one mount is served, RESOLVE_NO_XDEV makes the kernel refuse paths that lead into
 * another mount, also through symbolic links. But the kernel then also refuses absolute links below an open directory,
 * even if they stay on the mount. A refused path is therefore opened again without RESOLVE_NO_XDEV, and the mount of
 * the opened file is checked instead. A refused path that does not exist is treated as leading into another mount.
 */
static int open_in(const struct file_rules *rules, int dir, const char *path, int flags) {
  if (!rules->one_mount) return openat(dir, path, flags | O_CLOEXEC);
  if (flags & O_PATH) flags &= O_PATH | O_DIRECTORY | O_NOFOLLOW;
  struct open_how how = {.flags = (uint64_t)(unsigned)flags | O_CLOEXEC, .resolve = RESOLVE_NO_XDEV};
  int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
  if (fd >= 0 || errno != EXDEV) return fd;
  fd = openat(dir, path, O_PATH | (flags & (O_DIRECTORY | O_NOFOLLOW)) | O_CLOEXEC);
  bool right = fd >= 0 && is_on(fd, rules->root_mount);
  if (right && flags & O_PATH) return fd;
  if (fd >= 0) close(fd);
  if (right) return openat(dir, path, flags | O_CLOEXEC);
  errno = EXDEV;
  return -1;
}

static struct outcome not_opened(const struct file_rules *rules, int error) {
  if (rules->one_mount && error == EXDEV) return refused(NOT_ON_DISK, "only a running sandbox has this path");
  return system_error(error);
}

/* Removes repeated slashes and single dots, so that names can be compared. */
static struct outcome normalize(struct slice path, char text[PATH_MAX]) {
  if (path.size == 0 || path.data[0] != '/') return system_error(EINVAL);
  if (path.size >= PATH_MAX) return system_error(ENAMETOOLONG);
  size_t length = 0;
  for (size_t at = 0; at < path.size;) {
    if (path.data[at] == '/') {
      at++;
      continue;
    }
    size_t end = at;
    while (end < path.size && path.data[end] != '/') end++;
    size_t size = end - at;
    if (size == 2 && memcmp(path.data + at, "..", 2) == 0) return system_error(EINVAL);
    if (size > NAME_MAX) return system_error(ENAMETOOLONG);
    if (!(size == 1 && path.data[at] == '.')) {
      text[length++] = '/';
      memcpy(text + length, path.data + at, size);
      length += size;
    }
    at = end;
  }
  text[length] = 0;
  return answered();
}

static bool is_keepers(const char *path) {
  size_t size = strlen("/" RESERVED_NAME);
  return strncmp(path, "/" RESERVED_NAME, size) == 0 && (path[size] == 0 || path[size] == '/');
}

int make_directory(int dir, const char *name, const struct owner *owner, uint32_t mode) {
  if (mkdirat(dir, name, 0700) < 0) return -1;
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = fchown(fd, owner->uid, owner->gid);
  if (result == 0) result = fchmod(fd, mode & 07777);
  int error = errno;
  close(fd);
  errno = error;
  return result;
}

/* Opens a subdirectory, creating it if it is missing. */
static int step_down(const struct file_rules *rules, int dir, const char *name, const struct owner *owner,
                     struct outcome *outcome) {
  int next = openat(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (next < 0 && errno == ENOENT) {
    if (make_directory(dir, name, owner, 0755) < 0 && errno != EEXIST) {
      *outcome = system_error(errno);
      return -1;
    }
    next = openat(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (next < 0) {
    *outcome = system_error(errno);
    return -1;
  }
  struct statx stat;
  *outcome = stat_open(rules, next, &stat);
  if (outcome->kind == ANSWER) return next;
  close(next);
  return -1;
}

static int walk_down(const struct file_rules *rules, char *path, const struct owner *owner, struct outcome *outcome) {
  int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) *outcome = system_error(errno);
  for (char *name = path + 1; dir >= 0 && *name;) {
    char *end = strchrnul(name, '/');
    char *rest = *end ? end + 1 : end;
    *end = 0;
    int next = step_down(rules, dir, name, owner, outcome);
    close(dir);
    dir = next;
    name = rest;
  }
  return dir;
}

/* Refuses a place that is reserved for the keeper. */
static struct outcome admit(const struct file_rules *rules, struct place *place) {
  if (!rules->reserve) return answered();
  struct statx stat;
  struct outcome outcome = stat_open(rules, place->dir, &stat);
  if (outcome.kind == ANSWER && strcmp(place->name, RESERVED_NAME) == 0) {
    struct statx root;
    if (statx(AT_FDCWD, "/", 0, STAT_MASK, &root) == 0 && root.stx_ino == stat.stx_ino &&
        root.stx_dev_major == stat.stx_dev_major && root.stx_dev_minor == stat.stx_dev_minor) {
      outcome = reserved();
    }
  }
  if (outcome.kind != ANSWER) place_close(place);
  return outcome;
}

struct outcome place_find(const struct file_rules *rules, struct slice path, const struct owner *make_parents,
                          struct place *place) {
  char text[PATH_MAX];
  place->dir = -1;
  struct outcome outcome = normalize(path, text);
  if (outcome.kind != ANSWER) return outcome;
  if (rules->reserve && is_keepers(text)) return reserved();
  char *slash = strrchr(text, '/');
  strcpy(place->name, slash ? slash + 1 : ".");
  if (slash) *slash = 0;
  place->dir = open_in(rules, AT_FDCWD, *text ? text : "/", O_PATH | O_DIRECTORY);
  if (place->dir < 0 && errno == ENOENT && make_parents) {
    outcome = answered();
    place->dir = walk_down(rules, text, make_parents, &outcome);
    if (place->dir < 0) return outcome;
  }
  if (place->dir < 0) return not_opened(rules, errno);
  return admit(rules, place);
}

struct outcome place_of(const struct request *request, struct slice path, struct place *place) {
  return reader_done(&request->in) ? place_find(&request->server->files, path, NULL, place) : malformed();
}

static struct outcome follow_once(const struct file_rules *rules, struct place *place, char *target) {
  char *slash = strrchr(target, '/');
  const char *name = slash ? slash + 1 : target;
  if (*name == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
    place_close(place);
    return system_error(EISDIR);
  }
  if (strlen(name) > NAME_MAX) {
    place_close(place);
    return system_error(ENAMETOOLONG);
  }
  strcpy(place->name, name);
  if (!slash) return admit(rules, place);
  if (slash == target) slash++;
  *slash = 0;
  int dir = open_in(rules, place->dir, target, O_PATH | O_DIRECTORY);
  int error = errno;
  place_close(place);
  if (dir < 0) return not_opened(rules, error);
  place->dir = dir;
  return admit(rules, place);
}

struct outcome place_follow(const struct file_rules *rules, struct place *place) {
  for (int count = 0; count < SYMLINKS_MAX; count++) {
    char target[PATH_MAX];
    ssize_t size = readlinkat(place->dir, place->name, target, sizeof target - 1);
    if (size < 0) return answered();
    target[size] = 0;
    struct outcome outcome = follow_once(rules, place, target);
    if (outcome.kind != ANSWER) return outcome;
  }
  place_close(place);
  return system_error(ELOOP);
}

void place_close(struct place *place) {
  if (place->dir >= 0) close(place->dir);
  place->dir = -1;
}

struct outcome place_open(const struct file_rules *rules, const struct place *place, int flags, int *fd,
                          struct statx *stat) {
  *fd = open_in(rules, place->dir, place->name, flags | O_NONBLOCK | O_NOCTTY);
  if (*fd < 0) return not_opened(rules, errno);
  struct outcome outcome = stat_open(rules, *fd, stat);
  if (outcome.kind != ANSWER) {
    close(*fd);
    *fd = -1;
  }
  return outcome;
}
