#include "porter/porter_path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SEALED_MODE 0555

static void close_keeping_errno(int fd) {
  int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
}

/* Returns the length of the next component of a path; 0 at the end. Skips repeated slashes and single
 * dots. */
static size_t next_part(const char **path) {
  for (;;) {
    *path += strspn(*path, "/");
    size_t size = strcspn(*path, "/");
    if (size != 1 || **path != '.') return size;
    *path += size;
  }
}

bool porter_path_is_valid(const char *path) {
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

/*
 * Changes the owner of a directory that was just created. If a sandbox has put another directory in its place
 * meanwhile, that directory is not owned by the host's root user and stays unchanged.
 */
static bool give_away(int fd, uid_t owner) {
  struct stat stat;
  if (fstat(fd, &stat) < 0) return false;
  return stat.st_uid != 0 || fchown(fd, owner, owner) == 0;
}

/* Creates a directory and opens it. Its mode comes from a default ACL if there is one, otherwise from the
 * umask. */
static int make_step(int dir, const char *name, uid_t owner) {
  bool made = mkdirat(dir, name, 0777) == 0;
  if (!made && errno != EEXIST) return -1;
  int fd = open_step(dir, name);
  if (fd < 0 || !made || give_away(fd, owner)) return fd;
  close_keeping_errno(fd);
  return -1;
}

static bool step_down(struct porter_path *path_to, const uid_t *owner) {
  int fd = open_step(path_to->fd, path_to->name);
  if (fd < 0 && errno == ENOENT && owner) fd = make_step(path_to->fd, path_to->name, *owner);
  if (fd < 0) {
    int error = errno;
    porter_path_close(path_to);
    errno = error;
    return false;
  }
  if (path_to->parent >= 0) close(path_to->parent);
  path_to->parent = path_to->fd;
  path_to->fd = fd;
  return true;
}

bool porter_path_open(struct porter_path *path_to, int root, const char *path, const uid_t *owner) {
  *path_to = (struct porter_path){.parent = -1, .fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (path_to->fd < 0) return false;
  for (size_t size; (size = next_part(&path)) > 0; path += size) {
    memcpy(path_to->name, path, size);
    path_to->name[size] = 0;
    if (!step_down(path_to, owner)) return false;
  }
  return true;
}

void porter_path_close(struct porter_path *path_to) {
  if (path_to->parent >= 0) close(path_to->parent);
  if (path_to->fd >= 0) close(path_to->fd);
  path_to->parent = path_to->fd = -1;
}

bool porter_path_look(int fd, struct path_end *end) {
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

/*
 * Seals a directory. The owner is changed last: if this process ends before that, the next seal still finds the
 * previous owner.
 */
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

/*
 * Unseals a directory. The owner is changed last: a directory counts as sealed until then, so an interrupted unseal can
 * be repeated.
 */
bool unseal_directory(int fd, const struct seal *before) {
  struct stat stat;
  if (!before->known) return true;
  if (fstat(fd, &stat) < 0) return false;
  if (!is_sealed(&stat)) return true;
  /*
   * EROFS is no error: a directory on a read-only file system is a directory of the host that is visible inside, and
   * such a directory was never sealed.
   */
  return (fchmod(fd, before->mode) == 0 && fchown(fd, before->uid, before->gid) == 0) || errno == EROFS;
}
