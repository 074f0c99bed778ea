#include "files/file_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "files/files.h"
#include "files/path.h"
#include "files/remove.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static struct outcome done_or_errno(int result) {
  return result < 0 ? system_error(errno) : answered();
}

/*
 * Resolves a path to its place, an open directory and a name in it, and runs an operation on the place. The operation
 * returns 0, or -1 with errno.
 */
static struct outcome act_at(struct request *request, struct slice path,
                             int (*act)(const struct place *place, const void *argument), const void *argument) {
  struct place place;
  struct outcome outcome = place_of(request, path, &place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = done_or_errno(act(&place, argument));
  place_close(&place);
  return outcome;
}

/* Resolves two paths, each to an open directory and a name in it, and runs an operation on both, such as a rename. */
static struct outcome act_on_both(struct request *request, struct slice first, struct slice second,
                                  int (*act)(const struct place *from, const struct place *to)) {
  struct place from;
  struct place to;
  struct outcome outcome = place_of(request, first, &from);
  if (outcome.kind != ANSWER) return outcome;
  outcome = place_of(request, second, &to);
  if (outcome.kind == ANSWER) {
    outcome = done_or_errno(act(&from, &to));
    place_close(&to);
  }
  place_close(&from);
  return outcome;
}

/* ── Creating and removing ───────────────────────────────────────────────────────────────────────────────────────── */

struct outcome handle_mkdir(struct request *request) {
  struct slice path = read_str(&request->in);
  uint32_t mode = given_or(read_u32(&request->in), 0755);
  bool parents = read_u8(&request->in);
  struct owner owner = owner_or_default(request, read_owner(request));
  if (!reader_done(&request->in)) return malformed();
  struct place place;
  struct outcome outcome = place_find(&request->server->files, path, parents ? &owner : NULL, &place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = done_or_errno(make_directory(place.dir, place.name, &owner, mode));
  if (parents && outcome.error == EEXIST) {
    struct stat stat;
    bool directory = fstatat(place.dir, place.name, &stat, 0) == 0 && S_ISDIR(stat.st_mode);
    if (directory) outcome = answered();
  }
  place_close(&place);
  return outcome;
}

struct outcome handle_remove(struct request *request) {
  struct slice path = read_str(&request->in);
  bool recursive = read_u8(&request->in);
  struct place place;
  struct outcome outcome = place_of(request, path, &place);
  if (outcome.kind != ANSWER) return outcome;
  int result = unlinkat(place.dir, place.name, 0);
  if (result < 0 && (errno == EISDIR || errno == EPERM)) result = unlinkat(place.dir, place.name, AT_REMOVEDIR);
  outcome = done_or_errno(result);
  if (recursive && (outcome.error == ENOTEMPTY || outcome.error == EEXIST)) {
    struct removal removal = {&request->server->files, place.name};
    outcome = job_start(request, place.dir, remove_tree, &removal);
  }
  place_close(&place);
  return outcome;
}

struct link_order {
  char target[PATH_MAX];
  struct owner owner;
};

static int make_link(const struct place *place, const void *argument) {
  const struct link_order *order = argument;
  if (symlinkat(order->target, place->dir, place->name) < 0) return -1;
  return fchownat(place->dir, place->name, order->owner.uid, order->owner.gid, AT_SYMLINK_NOFOLLOW);
}

struct outcome handle_symlink(struct request *request) {
  struct slice target = read_str(&request->in);
  struct slice path = read_str(&request->in);
  struct link_order order = {.owner = owner_or_default(request, read_owner(request))};
  if (target.size >= sizeof order.target) return system_error(ENAMETOOLONG);
  memcpy(order.target, target.data, target.size);
  return act_at(request, path, make_link, &order);
}

static int link_hard(const struct place *existing, const struct place *place) {
  return linkat(existing->dir, existing->name, place->dir, place->name, 0);
}

struct outcome handle_hardlink(struct request *request) {
  struct slice existing = read_str(&request->in);
  struct slice path = read_str(&request->in);
  return act_on_both(request, existing, path, link_hard);
}

/* ── Moving ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int rename_over(const struct place *from, const struct place *to) {
  return renameat(from->dir, from->name, to->dir, to->name);
}

static int rename_new(const struct place *from, const struct place *to) {
  if (renameat2(from->dir, from->name, to->dir, to->name, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  /*
   * Not every file system can atomically refuse to replace a file. On those that cannot, the best alternative is to
   * check first whether the file exists.
   */
  struct stat stat;
  if (fstatat(to->dir, to->name, &stat, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return -1;
  }
  return rename_over(from, to);
}

struct outcome handle_rename(struct request *request) {
  struct slice from = read_str(&request->in);
  struct slice to = read_str(&request->in);
  bool overwrite = read_u8(&request->in);
  return act_on_both(request, from, to, overwrite ? rename_over : rename_new);
}

/* ── Mode, owner and time ────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Changes the mode of the inode that `fd` refers to. Kernels without fchmodat2 need /proc for this. /proc is used only
 * if it is a real procfs: otherwise it is a directory from the files of a sandbox, which is not trusted.
 */
static int chmod_open(int fd, uint32_t mode) {
  if (syscall(SYS_fchmodat2, fd, "", mode, AT_EMPTY_PATH) == 0) return 0;
  /*
   * ENOSYS means that the kernel has no fchmodat2. EPERM may mean the same, because a system call filter may return it
   * for calls that it does not know.
   */
  if (errno != ENOSYS && errno != EPERM) return -1;
  int error = errno;
  struct statfs kind;
  int proc = open("/proc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int result = -1;
  if (proc >= 0 && fstatfs(proc, &kind) == 0 && kind.f_type == PROC_SUPER_MAGIC) {
    char name[32];
    snprintf(name, sizeof name, "self/fd/%d", fd);
    result = fchmodat(proc, name, mode, 0);
    error = errno;
  }
  if (proc >= 0) close(proc);
  errno = error;
  return result;
}

struct outcome handle_chmod(struct request *request) {
  struct slice path = read_str(&request->in);
  uint32_t mode = read_u32(&request->in);
  const struct file_rules *rules = &request->server->files;
  struct place place;
  struct outcome outcome = place_of(request, path, &place);
  if (outcome.kind == ANSWER) outcome = place_follow(rules, &place);
  if (outcome.kind != ANSWER) return outcome;
  int fd;
  struct statx stat;
  outcome = place_open(rules, &place, O_PATH | O_NOFOLLOW, &fd, &stat);
  if (outcome.kind == ANSWER) {
    /*
     * place_follow has already followed the links of the path. If the place is a symbolic link now, it was created
     * after that, and the request is refused.
     */
    outcome = S_ISLNK(stat.stx_mode) ? system_error(ELOOP) : done_or_errno(chmod_open(fd, mode & 07777));
    close(fd);
  }
  place_close(&place);
  return outcome;
}

static int change_owner(const struct place *place, const void *argument) {
  const struct owner *owner = argument;
  return fchownat(place->dir, place->name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW);
}

struct outcome handle_chown(struct request *request) {
  struct slice path = read_str(&request->in);
  struct owner owner = read_owner(request);
  return act_at(request, path, change_owner, &owner);
}

static int change_time(const struct place *place, const void *argument) {
  uint64_t mtime = *(const uint64_t *)argument;
  struct timespec times[2] = {
      {.tv_nsec = UTIME_OMIT},
      {.tv_sec = (time_t)(mtime / 1000), .tv_nsec = (long)(mtime % 1000) * 1000000},
  };
  return utimensat(place->dir, place->name, times, AT_SYMLINK_NOFOLLOW);
}

struct outcome handle_utimes(struct request *request) {
  struct slice path = read_str(&request->in);
  uint64_t mtime = read_u64(&request->in);
  return act_at(request, path, change_time, &mtime);
}
