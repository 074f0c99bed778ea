/*
 * Remounts a root that was unmounted on the host while its instance is running. The overlay cannot be mounted
 * a second time, because its upper layer is in use. But the instance still has the mount, and the mount can
 * be cloned: a clone has the same file system, source and open files.
 */
#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "porter/porter_instance.h"
#include "porter/porter_path.h"

/*
 * Clones the root mount of an instance. The mounts below the root are not cloned, so they stay invisible to the host.
 */
static int clone_root(int root, int *tree) {
  struct statfs system;
  if (fstatfs(root, &system) < 0) return porter_failed("the root of the process can't be examined");
  errno = 0;
  if (system.f_type != OVERLAYFS_SUPER_MAGIC) return porter_failed("the root of the process is not an overlay");
  *tree = open_tree(root, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
  if (*tree < 0) return porter_failed("the root of the process can't be cloned");
  struct mount_attr attributes = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, .propagation = MS_PRIVATE};
  if (mount_setattr(*tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0) return PORTER_DONE;
  return porter_failed("the clone can't be restricted");
}

static int open_target(const char *path) {
  return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_there(const char *path, const struct path_end *wanted) {
  struct path_end end;
  int target = open_target(path);
  bool there = target >= 0 && porter_path_look(target, &end) && end.mount_root && end.dev == wanted->dev &&
               end.ino == wanted->ino;
  if (target >= 0) close(target);
  return there;
}

/* Mounts the clone in the host's mount namespace, on top of whatever is at the path. */
static int put_back(int tree, const char *path) {
  struct path_end end;
  if (!porter_path_look(tree, &end)) return porter_failed("the clone can't be examined");
  if (!is_there(path, &end)) {
    int target = open_target(path);
    if (target < 0) return porter_failed("the place of the root can't be opened");
    if (move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0) {
      return porter_failed("the clone can't be put in its place");
    }
    errno = 0;
    if (!is_there(path, &end)) return porter_failed("the clone is not where it was put");
  }
  printf("remounted %llu %llu\n", end.dev, end.ino);
  return PORTER_DONE;
}

int porter_remount(int argc, char **argv) {
  if (argc != 3) return PORTER_USAGE;
  int namespace, root, tree = -1;
  int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (own < 0) return porter_failed("the host's mounts can't be examined");
  int status = instance_mounts(argv[0], argv[1], &namespace);
  if (status == PORTER_DONE) status = instance_enter(namespace, &root);
  if (status == PORTER_DONE) status = clone_root(root, &tree);
  if (status != PORTER_DONE) return status;
  if (setns(own, CLONE_NEWNS) < 0) return porter_failed("the host's mounts can't be entered again");
  return put_back(tree, argv[2]);
}
