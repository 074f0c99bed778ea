/*
 * Drives: host directories that are mounted into running sandboxes. A mount is created on the host, detached, and then
 * moved to its place inside the sandbox; no code of the sandbox runs for it. A sandbox may have manipulated the mount
 * point, and every sandbox that uses the drive may have manipulated its content, so symbolic links are followed neither
 * on the way to the mount point nor in the drive.
 */
#include "porter/porter.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "porter/porter_instance.h"
#include "porter/porter_path.h"

#define ID_MAX 0xfffffffeLL
/* The default user of commands. */
#define USER_ID 1000
/* Maximum number of unmounts at one target, because several mounts may be stacked there. */
#define STACK_MAX 64

/* ── Refusals ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static int refused(const char *reason, const char *message) {
  printf("%s %s\n", reason, message);
  return PORTER_REFUSED;
}

struct messages {
  const char *link;
  const char *file;
  const char *read_only;
  const char *failed;
};

static const struct messages of_source = {
    .link = "a symbolic link lies on the path to the directory in the drive",
    .file = "something on the path to the directory in the drive is not a directory",
    .read_only = "the directory is missing in the drive, which is read-only",
    .failed = "the directory in the drive can't be opened",
};

static const struct messages of_target = {
    .link = "a symbolic link lies on the path to the mount point",
    .file = "something on the path to the mount point is not a directory",
    .read_only = "the mount point is on a read-only file system",
    .failed = "the mount point can't be opened",
};

static int not_opened(const struct messages *messages) {
  if (errno == ELOOP) return refused("symlink", messages->link);
  if (errno == ENOTDIR) return refused("not_directory", messages->file);
  if (errno == EROFS) return refused("read_only", messages->read_only);
  return porter_failed(messages->failed);
}

static int occupied(void) {
  return refused("occupied", "something else is mounted at the mount point");
}

static int changed_meanwhile(void) {
  errno = 0;
  return porter_failed("the path to the mount point changed during the mount");
}

/* ── Arguments ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool read_id(const char *text, uid_t *id) {
  long long number = porter_number(text, ID_MAX);
  *id = (uid_t)number;
  return number >= 0;
}

/*
 * The owner of directories that are created on a path. If the command line has a dash instead of an owner, no directory
 * may be created.
 */
struct owner {
  bool given;
  uid_t id;
};

static bool read_owner(const char *text, struct owner *owner) {
  owner->given = strcmp(text, "-") != 0;
  return !owner->given || read_id(text, &owner->id);
}

static bool read_seal(char **argv, struct seal *before) {
  long long mode = porter_number(argv[2], 07777);
  before->known = true;
  before->mode = (mode_t)mode;
  return mode >= 0 && read_id(argv[0], &before->uid) && read_id(argv[1], &before->gid);
}

static bool read_access(const char *text, bool *read_only) {
  *read_only = strcmp(text, "ro") == 0;
  return *read_only || strcmp(text, "rw") == 0;
}

static void print_seal(const struct seal *before) {
  if (before->known) {
    printf(" %u %u %u\n", before->uid, before->gid, before->mode);
  } else {
    printf(" -\n");
  }
}

/* ── The mount ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A directory of a drive as a detached mount. */
struct tree {
  int fd;
  struct path_end end;
};

static bool set_attributes(int fd, unsigned long long set, unsigned long long propagation) {
  struct mount_attr attributes = {.attr_set = set, .propagation = propagation};
  return mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0;
}

static int clone_tree(int directory, bool read_only, struct tree *tree) {
  tree->fd = open_tree(directory, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
  if (tree->fd < 0) return porter_failed("the directory in the drive can't be mounted");
  unsigned long long set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (read_only ? MOUNT_ATTR_RDONLY : 0);
  if (!set_attributes(tree->fd, set, MS_PRIVATE)) return porter_failed("the mount can't be restricted");
  return porter_path_look(tree->fd, &tree->end) ? PORTER_DONE : porter_failed("the mount can't be examined");
}

static int open_source(const char *source, const char *subpath, bool read_only, struct owner owner, struct tree *tree) {
  struct porter_path path_to;
  int top = open(source, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (top < 0 || !porter_path_open(&path_to, top, subpath, owner.given ? &owner.id : NULL)) {
    return errno == ENOENT ? refused("source_missing", "the drive's directory is missing") : not_opened(&of_source);
  }
  int status = clone_tree(path_to.fd, read_only, tree);
  porter_path_close(&path_to);
  close(top);
  return status;
}

static bool is_same(const struct path_end *one, const struct path_end *other) {
  return one->dev == other->dev && one->ino == other->ino && one->read_only == other->read_only;
}

/*
 * Moves a detached mount to its place and makes it private. If the target is on a shared mount, the moved mount would
 * otherwise propagate later mounts and unmounts below it to other namespaces.
 */
static int put_in_place(const struct tree *tree, int directory) {
  const unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
  if (move_mount(tree->fd, "", directory, "", flags) < 0) return porter_failed("the mount can't be put in its place");
  return set_attributes(tree->fd, 0, MS_PRIVATE) ? PORTER_DONE : porter_failed("the mount can't be made private");
}

static bool is_served(const struct tree *tree, int root, const char *target) {
  struct porter_path path_to;
  struct path_end end;
  if (!porter_path_open(&path_to, root, target, NULL)) return false;
  bool served = porter_path_look(path_to.fd, &end) && end.mount_root && is_same(&end, &tree->end);
  porter_path_close(&path_to);
  return served;
}

/* Undoes a mount. The mount is unmounted through its own descriptor, because its directory may have been
 * renamed. */
static void take_back(const struct tree *tree) {
  if (fchdir(tree->fd) == 0) umount2(".", UMOUNT_NOFOLLOW | MNT_DETACH);
}

/*
 * Seals the mount point and then mounts over it. The order ensures that the sandbox can never write to the directory
 * below the mount.
 */
static int mount_sealed(const struct tree *tree, int root, const char *target, const struct porter_path *path_to) {
  struct seal before;
  if (!seal_directory(path_to->fd, &before)) return not_opened(&of_target);
  int status = put_in_place(tree, path_to->fd);
  if (status == PORTER_DONE && !is_served(tree, root, target)) status = changed_meanwhile();
  if (status == PORTER_DONE) {
    printf("mounted %llu %llu", tree->end.dev, tree->end.ino);
    print_seal(&before);
    return status;
  }
  take_back(tree);
  unseal_directory(path_to->fd, &before);
  return status;
}

static int mount_at(const struct tree *tree, int root, const char *target, uid_t owner) {
  struct porter_path path_to;
  struct path_end end;
  if (!porter_path_open(&path_to, root, target, &owner)) return not_opened(&of_target);
  if (!porter_path_look(path_to.fd, &end)) return porter_failed("the mount point can't be examined");
  if (path_to.parent < 0 || (end.mount_root && !is_same(&end, &tree->end))) return occupied();
  if (!end.mount_root) return mount_sealed(tree, root, target, &path_to);
  printf("mounted %llu %llu -\n", end.dev, end.ino);
  return PORTER_DONE;
}

int porter_mount(int argc, char **argv) {
  bool read_only;
  struct owner source_owner;
  uid_t target_owner;
  if (argc != 8 || !porter_path_is_valid(argv[3]) || !porter_path_is_valid(argv[4]) ||
      !read_access(argv[5], &read_only) || !read_owner(argv[6], &source_owner) || !read_id(argv[7], &target_owner)) {
    return PORTER_USAGE;
  }
  umask(022);
  int namespace, root;
  struct tree tree;
  int status = instance_mounts(argv[0], argv[1], &namespace);
  if (status == PORTER_DONE) status = open_source(argv[2], argv[3], read_only, source_owner, &tree);
  if (status == PORTER_DONE) status = instance_enter(namespace, &root);
  return status == PORTER_DONE ? mount_at(&tree, root, argv[4], target_owner) : status;
}

/* ── Unmounting ────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Returns whether opening failed because the path is missing or no longer consists of directories. In both cases no
 * mount of Holdfast is at the path.
 */
static bool leads_nowhere(void) {
  return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

/* Unmounts the mount at a path. Closes the directory in `path_to` first, because an open directory keeps its mount
 * busy. */
static int unmount_path(struct porter_path *path_to) {
  close(path_to->fd);
  path_to->fd = -1;
  if (fchdir(path_to->parent) < 0 || porter_unmount_one(path_to->name) < 0) {
    return porter_failed("the mount can't be unmounted");
  }
  return PORTER_DONE;
}

static int unmount_at(int root, const char *target, const struct seal *before) {
  for (int i = 0; i < STACK_MAX; i++) {
    struct porter_path path_to;
    struct path_end end;
    if (!porter_path_open(&path_to, root, target, NULL)) {
      return leads_nowhere() ? PORTER_DONE : porter_failed(of_target.failed);
    }
    if (path_to.parent < 0) return PORTER_USAGE;
    if (!porter_path_look(path_to.fd, &end)) return porter_failed("the mount point can't be examined");
    if (!end.mount_root) {
      return unseal_directory(path_to.fd, before) ? PORTER_DONE : porter_failed("the directory can't be restored");
    }
    int status = unmount_path(&path_to);
    porter_path_close(&path_to);
    if (status != PORTER_DONE) return status;
  }
  errno = 0;
  return porter_failed("new mounts keep appearing at the target");
}

int porter_unmount(int argc, char **argv) {
  struct seal before;
  if (argc != 6 || !porter_path_is_valid(argv[2]) || !read_seal(argv + 3, &before)) return PORTER_USAGE;
  int namespace, root;
  int status = instance_mounts(argv[0], argv[1], &namespace);
  if (status == PORTER_DONE) status = instance_enter(namespace, &root);
  return status == PORTER_DONE ? unmount_at(root, argv[2], &before) : status;
}

/* ── Mount points outside an instance ────────────────────────────────────────────────────────────────────────────── */

static int open_root(const char *path) {
  return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int porter_unseal(int argc, char **argv) {
  struct porter_path path_to;
  struct seal before;
  if (argc != 5 || !porter_path_is_valid(argv[1]) || !read_seal(argv + 2, &before)) return PORTER_USAGE;
  int root = open_root(argv[0]);
  if (root < 0 || !porter_path_open(&path_to, root, argv[1], NULL)) {
    return leads_nowhere() ? PORTER_DONE : porter_failed(of_target.failed);
  }
  return unseal_directory(path_to.fd, &before) ? PORTER_DONE : porter_failed("the directory can't be restored");
}

/* Mounts a directory of a drive at a path of the host. The host owns this path, so it need not be sealed. */
int porter_stage(int argc, char **argv) {
  bool read_only;
  struct owner owner;
  struct tree tree;
  struct path_end end;
  if (argc != 5 || !porter_path_is_valid(argv[1]) || !read_access(argv[3], &read_only) ||
      !read_owner(argv[4], &owner)) {
    return PORTER_USAGE;
  }
  umask(022);
  int status = open_source(argv[0], argv[1], read_only, owner, &tree);
  if (status != PORTER_DONE) return status;
  int target = open_root(argv[2]);
  if (target < 0 || !porter_path_look(target, &end)) return porter_failed(of_target.failed);
  if (end.mount_root && !is_same(&end, &tree.end)) return occupied();
  if (!end.mount_root) {
    status = put_in_place(&tree, target);
    if (status != PORTER_DONE) return status;
    int seen = open_root(argv[2]);
    if (seen < 0 || !porter_path_look(seen, &end) || !end.mount_root || !is_same(&end, &tree.end)) {
      return changed_meanwhile();
    }
  }
  printf("staged %llu %llu\n", end.dev, end.ino);
  return PORTER_DONE;
}

/* ── The root of a drive ─────────────────────────────────────────────────────────────────────────────────────────── */

struct acl {
  struct posix_acl_xattr_header header;
  struct posix_acl_xattr_entry entries[6];
};

static struct posix_acl_xattr_entry may(int tag, int permissions, uid_t id) {
  return (struct posix_acl_xattr_entry){htole16((uint16_t)tag), htole16((uint16_t)permissions), htole32(id)};
}

/*
 * Sets an ACL so that both users of a sandbox (root and the default user) may write everything that either of them
 * creates, in this sandbox or in another. A user can still create private files, because the mode with which a file is
 * created limits the permissions of the ACL.
 */
static bool share(int fd, uid_t base) {
  const int all = ACL_READ | ACL_WRITE | ACL_EXECUTE, most = ACL_READ | ACL_EXECUTE;
  const struct acl acl = {
      .header.a_version = htole32(POSIX_ACL_XATTR_VERSION),
      .entries = {
          may(ACL_USER_OBJ, all, (uid_t)ACL_UNDEFINED_ID),
          may(ACL_USER, all, base),
          may(ACL_USER, all, base + USER_ID),
          may(ACL_GROUP_OBJ, most, (uid_t)ACL_UNDEFINED_ID),
          may(ACL_MASK, all, (uid_t)ACL_UNDEFINED_ID),
          may(ACL_OTHER, most, (uid_t)ACL_UNDEFINED_ID),
      },
  };
  bool shared = fsetxattr(fd, "system.posix_acl_access", &acl, sizeof acl, 0) == 0 &&
                fsetxattr(fd, "system.posix_acl_default", &acl, sizeof acl, 0) == 0;
  return shared || errno == EOPNOTSUPP;
}

/*
 * Sets owner, mode and ACL of a drive's root. The ACL is set last, because a later change of the mode would limit the
 * permissions of the ACL.
 */
int porter_drive_root(int argc, char **argv) {
  uid_t base, owner;
  if (argc != 3 || !read_id(argv[1], &base) || !read_id(argv[2], &owner) || base > ID_MAX - USER_ID) return PORTER_USAGE;
  int fd = open(argv[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return porter_failed("the directory can't be opened");
  if (fchown(fd, owner, owner) < 0 || fchmod(fd, 0755) < 0) {
    return porter_failed("the directory's owner can't be set");
  }
  return share(fd, base) ? PORTER_DONE : porter_failed("the directory's permissions can't be set");
}
