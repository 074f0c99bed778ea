#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Maximum size of mount options: the kernel accepts at most one page. */
#define OPTIONS_MAX 4096
/* Maximum number of unmounts at one target, because several mounts may be stacked there. */
#define STACK_MAX 64
/* Maximum number of attempts to unmount, because a process that was just killed may still use a mount for
 * a moment. */
#define BUSY_TRIES 10
#define BUSY_PAUSE_NS (2 * 1000 * 1000)

struct options {
  char text[OPTIONS_MAX];
  size_t size;
  bool full;
};

static void add_char(struct options *options, char letter) {
  if (options->size + 1 >= sizeof options->text) {
    options->full = true;
    return;
  }
  options->text[options->size++] = letter;
  options->text[options->size] = 0;
}

static void add_text(struct options *options, const char *text) {
  for (; *text; text++) add_char(options, *text);
}

/*
 * Appends a path to the options. Escapes commas and colons in the path, because they separate options and layers, and
 * backslashes, because they are the escape character.
 */
static void add_path(struct options *options, const char *path) {
  for (; *path; path++) {
    if (*path == ',' || *path == ':' || *path == '\\') add_char(options, '\\');
    add_char(options, *path);
  }
}

/* Mounts an overlay. The marker becomes the mount's source, by which the mount is identified in mountinfo. */
int porter_overlay(int argc, char **argv) {
  if (argc < 5) return PORTER_USAGE;
  struct options options = {.size = 0};
  add_text(&options, "index=on,nfs_export=on,upperdir=");
  add_path(&options, argv[2]);
  add_text(&options, ",workdir=");
  add_path(&options, argv[3]);
  add_text(&options, ",lowerdir=");
  for (int i = 4; i < argc; i++) {
    if (i > 4) add_char(&options, ':');
    add_path(&options, argv[i]);
  }
  if (options.full) {
    errno = 0;
    return porter_failed("the paths of the layers are too long together");
  }
  if (mount(argv[0], argv[1], "overlay", MS_NOSUID | MS_NODEV, options.text) < 0) {
    return porter_failed("the overlay can't be mounted");
  }
  return PORTER_DONE;
}

int porter_unmount_one(const char *target) {
  struct timespec pause = {.tv_nsec = BUSY_PAUSE_NS};
  for (int i = 0; i < BUSY_TRIES; i++) {
    if (umount2(target, UMOUNT_NOFOLLOW) == 0) return 0;
    if (errno != EBUSY) return -1;
    nanosleep(&pause, NULL);
  }
  return umount2(target, UMOUNT_NOFOLLOW | MNT_DETACH);
}

int porter_umount(int argc, char **argv) {
  if (argc != 1) return PORTER_USAGE;
  for (int i = 0; i < STACK_MAX; i++) {
    if (porter_unmount_one(argv[0]) == 0) continue;
    return errno == EINVAL || errno == ENOENT ? PORTER_DONE : porter_failed("the mount can't be unmounted");
  }
  errno = 0;
  return porter_failed("new mounts keep appearing at the target");
}

/* Maximum size of the host file that is copied into the new /run. */
#define RUN_FILE_MAX (64 * 1024)

/*
 * Mounts a new /run that only the command sees. It contains only a copy of `file`, or nothing if `file` does not exist.
 * CRIU caches its findings about the kernel in /run, but only if /run is a tmpfs. The host's /run may be on disk and
 * must not be written to, so the command gets a tmpfs of its own.
 */
static int private_run(const char *file) {
  static char content[RUN_FILE_MAX];
  const char *name = strrchr(file, '/');
  char path[sizeof "/run/" + 64];
  ssize_t size = 0;
  int from = open(file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (from < 0 && errno != ENOENT) return porter_failed("the file for /run can't be opened");
  if (from >= 0) size = read(from, content, sizeof content);
  if (size < 0) return porter_failed("the file for /run can't be read");
  if (mount("holdfast", "/run", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,mode=700") < 0) {
    return porter_failed("nothing can be mounted on /run");
  }
  if (from < 0) return PORTER_DONE;
  close(from);
  snprintf(path, sizeof path, "/run/%.64s", name ? name + 1 : file);
  int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (to < 0 || write(to, content, (size_t)size) != size) return porter_failed("/run can't be written to");
  return close(to) == 0 ? PORTER_DONE : porter_failed("/run can't be written to");
}

/* Creates the directories of a path below /tmp; existing ones are accepted. */
static bool make_path(const char *path) {
  char text[4096];
  if (snprintf(text, sizeof text, "%s", path) >= (int)sizeof text) return false;
  for (char *slash = text + strlen("/tmp/"); (slash = strchr(slash, '/')); *slash++ = '/') {
    *slash = 0;
    if (mkdir(text, 0755) < 0 && errno != EEXIST) return false;
  }
  return mkdir(text, 0755) == 0 || errno == EEXIST;
}

/*
 * Mounts a new, empty /tmp that only the command sees, because CRIU creates world-accessible directories in /tmp and
 * leaves them there if it is killed. If `keep` is a directory in the host's /tmp, that one directory is mounted at
 * the same path in the new /tmp.
 */
static int private_tmp(const char *keep) {
  char path[64];
  bool inside = strncmp(keep, "/tmp/", strlen("/tmp/")) == 0;
  int fd = inside ? open(keep, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  if (inside && fd < 0) return porter_failed("the directory in /tmp can't be opened");
  if (mount("holdfast", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") < 0) {
    return porter_failed("nothing can be mounted on /tmp");
  }
  if (!inside) return PORTER_DONE;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (!make_path(keep) || mount(path, keep, NULL, MS_BIND | MS_REC, NULL) < 0) {
    return porter_failed("the directory in /tmp can't be mounted");
  }
  close(fd);
  return PORTER_DONE;
}

/*
 * Moves this process to a cgroup. Must be called before any child is created, so that every child is in the cgroup too.
 */
static int enter(const char *file) {
  char pid[32];
  int size = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
  int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, pid, (size_t)size) != size) return porter_failed("the cgroup can't be entered");
  return close(fd) == 0 ? PORTER_DONE : porter_failed("the cgroup can't be entered");
}

/* Returns whether the next option has this name and number of values. If so, advances `*at` past the
 * values. */
static bool option(int argc, char **argv, int *at, const char *name, int values) {
  if (*at + values >= argc || strcmp(argv[*at], name) != 0) return false;
  *at += 1 + values;
  return true;
}

struct view {
  char **unmounts;
  int unmount_count;
  const char *run;
  const char *kept;
  char **bound;
};

/*
 * Changes mounts for the command only. The command sees the host with these changes, and the host's own mounts stay the
 * same.
 */
static int change_mounts(const struct view *view) {
  if (unshare(CLONE_NEWNS) < 0) return porter_failed("no mount namespace can be made");
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return porter_failed("mounts can't be made private");
  for (int i = 0; i < view->unmount_count; i++) {
    const char *path = view->unmounts[2 * i + 1];
    if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT) {
      return porter_failed("a mount can't be unmounted");
    }
  }
  if (view->run && private_run(view->run) != PORTER_DONE) return PORTER_FAILED;
  if (view->kept && private_tmp(view->kept) != PORTER_DONE) return PORTER_FAILED;
  if (view->bound && mount(view->bound[0], view->bound[1], NULL, MS_BIND | MS_REC, NULL) < 0) {
    return porter_failed("a directory can't be mounted on another");
  }
  return PORTER_DONE;
}

/* Runs a command in a changed environment. A mount namespace is created only if the command's mounts
 * differ from the host's. */
int porter_private(int argc, char **argv) {
  int at = 0;
  struct view view = {0};
  const char *cgroup = option(argc, argv, &at, "--enter", 1) ? argv[at - 1] : NULL;
  bool detached = option(argc, argv, &at, "--detach", 0);
  view.unmounts = argv + at;
  while (option(argc, argv, &at, "--umount", 1)) view.unmount_count++;
  if (option(argc, argv, &at, "--run", 1)) view.run = argv[at - 1];
  if (option(argc, argv, &at, "--tmp", 1)) view.kept = argv[at - 1];
  if (option(argc, argv, &at, "--bind", 2)) view.bound = argv + at - 2;
  if (at + 1 >= argc || strcmp(argv[at], "--") != 0) return PORTER_USAGE;
  if (cgroup && enter(cgroup) != PORTER_DONE) return PORTER_FAILED;
  bool differs = detached || view.unmount_count > 0 || view.run || view.kept || view.bound;
  if (differs && change_mounts(&view) != PORTER_DONE) return PORTER_FAILED;
  execvp(argv[at + 1], argv + at + 1);
  return porter_failed("the command can't be run");
}
