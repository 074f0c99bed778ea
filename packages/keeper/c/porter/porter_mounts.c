#include "porter.h"

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

/* The kernel takes one page of mount options. */
#define OPTIONS_MAX 4096
/* Mounts stacked on one target that are taken off before something must be wrong. */
#define STACK_MAX 64
/* A process that was just killed may hold a mount for a moment longer. */
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

/* A path may contain what separates options and layers from each other. */
static void add_path(struct options *options, const char *path) {
  for (; *path; path++) {
    if (*path == ',' || *path == ':' || *path == '\\') add_char(options, '\\');
    add_char(options, *path);
  }
}

/* The marker becomes the mount's source: it shows in mountinfo, where the mount can be found again by it. */
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
    return errno == EINVAL || errno == ENOENT ? PORTER_DONE : porter_failed("the mount can't be taken off");
  }
  errno = 0;
  return porter_failed("mounts keep coming back at the target");
}

/* A file of the host, of at most this size, in the new /run. */
#define RUN_FILE_MAX (64 * 1024)

/*
 * CRIU keeps what it found out about the kernel in /run, if that is in memory, and takes it from there. The host's may be
 * on disk, and is not ours to write to: the command gets one of its own, with what was found out before.
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

/* Makes the directories of a path below /tmp, of which only the last may be there. */
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
 * CRIU makes directories in /tmp that stay there, open to everyone, where it is killed. The command gets a /tmp of its own,
 * in which one directory is what it is outside.
 */
static int private_tmp(const char *keep) {
  char path[64];
  bool inside = strncmp(keep, "/tmp/", strlen("/tmp/")) == 0;
  int fd = inside ? open(keep, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  if (inside && fd < 0) return porter_failed("what is to be kept of /tmp can't be opened");
  if (mount("holdfast", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") < 0) {
    return porter_failed("nothing can be mounted on /tmp");
  }
  if (!inside) return PORTER_DONE;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (!make_path(keep) || mount(path, keep, NULL, MS_BIND | MS_REC, NULL) < 0) {
    return porter_failed("what is to be kept of /tmp can't be mounted");
  }
  close(fd);
  return PORTER_DONE;
}

/* Before anything else is done: what is forked from here on is found there. */
static int enter(const char *file) {
  char pid[32];
  int size = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
  int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, pid, (size_t)size) != size) return porter_failed("the cgroup can't be entered");
  return close(fd) == 0 ? PORTER_DONE : porter_failed("the cgroup can't be entered");
}

/* Whether an option with so many values is next. They lie behind its name, and `*at` behind them afterwards. */
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

/* The command sees the host with some of its mounts changed; the host itself keeps them. */
static int change_mounts(const struct view *view) {
  if (unshare(CLONE_NEWNS) < 0) return porter_failed("no mount namespace can be made");
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return porter_failed("mounts can't be made private");
  for (int i = 0; i < view->unmount_count; i++) {
    const char *path = view->unmounts[2 * i + 1];
    if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT) {
      return porter_failed("a mount can't be taken off");
    }
  }
  if (view->run && private_run(view->run) != PORTER_DONE) return PORTER_FAILED;
  if (view->kept && private_tmp(view->kept) != PORTER_DONE) return PORTER_FAILED;
  if (view->bound && mount(view->bound[0], view->bound[1], NULL, MS_BIND | MS_REC, NULL) < 0) {
    return porter_failed("a directory can't be mounted on another");
  }
  return PORTER_DONE;
}

/* A mount namespace is made where something in it is to be different. */
int porter_private(int argc, char **argv) {
  int at = 0;
  struct view view = {0};
  const char *cgroup = option(argc, argv, &at, "--enter", 1) ? argv[at - 1] : NULL;
  view.unmounts = argv + at;
  while (option(argc, argv, &at, "--umount", 1)) view.unmount_count++;
  if (option(argc, argv, &at, "--run", 1)) view.run = argv[at - 1];
  if (option(argc, argv, &at, "--tmp", 1)) view.kept = argv[at - 1];
  if (option(argc, argv, &at, "--bind", 2)) view.bound = argv + at - 2;
  if (at + 1 >= argc || strcmp(argv[at], "--") != 0) return PORTER_USAGE;
  if (cgroup && enter(cgroup) != PORTER_DONE) return PORTER_FAILED;
  bool differs = view.unmount_count > 0 || view.run || view.kept || view.bound;
  if (differs && change_mounts(&view) != PORTER_DONE) return PORTER_FAILED;
  execvp(argv[at + 1], argv + at + 1);
  return porter_failed("the command can't be run");
}
