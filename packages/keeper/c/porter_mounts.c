#include "porter.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
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

static int unmount_one(const char *target) {
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
    if (unmount_one(argv[0]) == 0) continue;
    return errno == EINVAL || errno == ENOENT ? PORTER_DONE : porter_failed("the mount can't be taken off");
  }
  errno = 0;
  return porter_failed("mounts keep coming back at the target");
}

/* The command sees the host without some of its mounts; the host itself keeps them. */
int porter_private(int argc, char **argv) {
  int at = 0;
  while (at + 1 < argc && strcmp(argv[at], "--umount") == 0) at += 2;
  if (at + 1 >= argc || strcmp(argv[at], "--") != 0) return PORTER_USAGE;
  if (unshare(CLONE_NEWNS) < 0) return porter_failed("no mount namespace can be made");
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return porter_failed("mounts can't be made private");
  for (int i = 0; i < at; i += 2) {
    if (umount2(argv[i + 1], UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT) {
      return porter_failed("a mount can't be taken off");
    }
  }
  execvp(argv[at + 1], argv + at + 1);
  return porter_failed("the command can't be run");
}
