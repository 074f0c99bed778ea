#include "porter_way.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SEALED_MODE 0555

static void close_kept(int fd) {
  int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
}

/* The next part of a path and its length; 0 at the end. Doubled slashes and single dots are passed over. */
static size_t next_part(const char **path) {
  for (;;) {
    *path += strspn(*path, "/");
    size_t size = strcspn(*path, "/");
    if (size != 1 || **path != '.') return size;
    *path += size;
  }
}

bool way_is_path(const char *path) {
  if (*path != '/' || strlen(path) >= PATH_MAX) return false;
  for (size_t size; (size = next_part(&path)) > 0; path += size) {
    if (size > NAME_MAX || (size == 2 && memcmp(path, "..", 2) == 0)) return false;
  }
  return true;
}

static int open_step(int dir, const char *name) {
  struct open_how how = {
      .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
      .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
  };
  return (int)syscall(SYS_openat2, dir, name, &how, sizeof how);
}

/* Nothing that a sandbox has made, and could have put in the place of what was just made, belongs to the host's root. */
static bool give_away(int fd, uid_t owner) {
  struct stat stat;
  if (fstat(fd, &stat) < 0) return false;
  return stat.st_uid != 0 || fchown(fd, owner, owner) == 0;
}

/* The mode is what a default ACL says, where there is one, or else the umask. */
static int make_step(int dir, const char *name, uid_t owner) {
  bool made = mkdirat(dir, name, 0777) == 0;
  if (!made && errno != EEXIST) return -1;
  int fd = open_step(dir, name);
  if (fd < 0 || !made || give_away(fd, owner)) return fd;
  close_kept(fd);
  return -1;
}

static bool step_down(struct way *way, const uid_t *owner) {
  int fd = open_step(way->fd, way->name);
  if (fd < 0 && errno == ENOENT && owner) fd = make_step(way->fd, way->name, *owner);
  if (fd < 0) {
    int error = errno;
    way_close(way);
    errno = error;
    return false;
  }
  if (way->parent >= 0) close(way->parent);
  way->parent = way->fd;
  way->fd = fd;
  return true;
}

bool way_open(struct way *way, int root, const char *path, const uid_t *owner) {
  *way = (struct way){.parent = -1, .fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (way->fd < 0) return false;
  for (size_t size; (size = next_part(&path)) > 0; path += size) {
    memcpy(way->name, path, size);
    way->name[size] = 0;
    if (!step_down(way, owner)) return false;
  }
  return true;
}

void way_close(struct way *way) {
  if (way->parent >= 0) close(way->parent);
  if (way->fd >= 0) close(way->fd);
  way->parent = way->fd = -1;
}

bool way_look(int fd, struct way_end *end) {
  struct statx stat;
  struct statvfs limits;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &stat) < 0 || fstatvfs(fd, &limits) < 0) return false;
  end->dev = makedev(stat.stx_dev_major, stat.stx_dev_minor);
  end->ino = stat.stx_ino;
  end->mount_root = stat.stx_attributes & STATX_ATTR_MOUNT_ROOT;
  end->read_only = limits.f_flag & ST_RDONLY;
  return true;
}

static bool is_sealed(const struct stat *stat) {
  return stat->st_uid == 0 && stat->st_gid == 0;
}

/* The owner last: where it is broken off in between, the next seal still finds whose it was. */
bool seal_directory(int fd, struct seal *before) {
  struct stat stat;
  if (fstat(fd, &stat) < 0) return false;
  *before = (struct seal){!is_sealed(&stat), stat.st_uid, stat.st_gid, stat.st_mode & 07777};
  if (fchmod(fd, SEALED_MODE) < 0) return false;
  if (!before->known || fchown(fd, 0, 0) == 0) return true;
  int error = errno;
  if (fchmod(fd, before->mode) < 0) return false;
  errno = error;
  return false;
}

/* The owner last here too: until then it counts as sealed. */
bool unseal_directory(int fd, const struct seal *before) {
  struct stat stat;
  if (!before->known) return true;
  if (fstat(fd, &stat) < 0) return false;
  if (!is_sealed(&stat)) return true;
  /* What can't be written to was never sealed: it is the host's, and shown inside. */
  return (fchmod(fd, before->mode) == 0 && fchown(fd, before->uid, before->gid) == 0) || errno == EROFS;
}
