/*
 * Mounts the file system in a disk image. If a disk image were attached to two loop devices, its blocks would be cached
 * twice, which destroys the file system. The disk image is therefore locked during the mount, and a device to which it
 * is already attached is reused.
 */
#include "porter/porter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Maximum number of attempts to attach the image, because another process may take the loop device between the search
 * for a free one and its use.
 */
#define ATTACH_TRIES 32

struct loop {
  int fd;
  char path[64];
};

static bool open_loop(struct loop *loop, const char *name, int flags) {
  snprintf(loop->path, sizeof loop->path, "/dev/%.32s", name);
  loop->fd = open(loop->path, flags | O_CLOEXEC);
  return loop->fd >= 0;
}

static bool holds(const struct loop *loop, const struct stat *image) {
  struct loop_info64 info;
  if (ioctl(loop->fd, LOOP_GET_STATUS64, &info) < 0) return false;
  return info.lo_inode == image->st_ino && info.lo_device == image->st_dev;
}

/* Finds the loop device to which the image is attached. Compares inodes, because the image may have several names. */
static bool find_loop(struct loop *loop, const struct stat *image) {
  DIR *blocks = opendir("/sys/block");
  if (!blocks) return false;
  bool found = false;
  for (struct dirent *entry; !found && (entry = readdir(blocks));) {
    char attached[sizeof "/sys/block//loop" + sizeof entry->d_name];
    if (strncmp(entry->d_name, "loop", 4) != 0) continue;
    snprintf(attached, sizeof attached, "/sys/block/%s/loop", entry->d_name);
    if (access(attached, F_OK) < 0 || !open_loop(loop, entry->d_name, O_RDONLY)) continue;
    found = holds(loop, image);
    if (!found) close(loop->fd);
  }
  closedir(blocks);
  return found;
}

/*
 * Attaches the image to a free loop device. The device detaches itself when neither a mount nor a process uses it any
 * more, so it also detaches if this process is killed before the mount.
 */
static int attach(struct loop *loop, const char *image) {
  int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return porter_failed("this host has no loop devices");
  int file = open(image, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return porter_failed("the image can't be opened");
  struct loop_config config = {.fd = (unsigned)file, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
  for (int i = 0; i < ATTACH_TRIES; i++) {
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) return porter_failed("no loop device is free");
    char name[32];
    snprintf(name, sizeof name, "loop%d", number);
    if (!open_loop(loop, name, O_RDWR)) return porter_failed("a loop device can't be opened");
    if (ioctl(loop->fd, LOOP_CONFIGURE, &config) == 0) return PORTER_DONE;
    if (errno != EBUSY) return porter_failed("the image can't be attached to a loop device");
    close(loop->fd);
  }
  return porter_failed("every free loop device was taken by another process");
}

static bool is_mounted(const struct loop *loop, const char *target) {
  struct stat device, root;
  return fstat(loop->fd, &device) == 0 && stat(target, &root) == 0 && root.st_dev == device.st_rdev;
}

int porter_disk(int argc, char **argv) {
  if (argc != 3) return PORTER_USAGE;
  const char *image = argv[0], *target = argv[1], *options = argv[2];
  int lock = open(image, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (lock < 0) return errno == ENOENT ? PORTER_GONE : porter_failed("the image can't be opened");
  struct stat stat;
  if (fstat(lock, &stat) < 0 || !S_ISREG(stat.st_mode)) return porter_failed("the image is not a file");
  if (flock(lock, LOCK_EX) < 0) return porter_failed("the image can't be locked");
  struct loop loop;
  if (find_loop(&loop, &stat)) {
    if (is_mounted(&loop, target)) return PORTER_DONE;
  } else {
    int status = attach(&loop, image);
    if (status != PORTER_DONE) return status;
  }
  if (mount(loop.path, target, "ext4", MS_NOSUID | MS_NODEV, options) == 0) return PORTER_DONE;
  return porter_failed("the image's file system can't be mounted");
}
