/*
 * Drives: directories of the host that appear in running sandboxes. A mount is made here, detached, and then put in its
 * place inside; nothing of the sandbox is run for it. Both ends of it may have been prepared by a sandbox, the drive's
 * content by any that has it, so no link is followed on either side.
 */
#include "porter.h"

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

#include "porter_instance.h"
#include "porter_way.h"

#define ID_MAX 0xfffffffeLL
/* The user that commands run as, unless asked otherwise. */
#define USER_ID 1000
/* Mounts stacked on one target that are taken off before something must be wrong. */
#define STACK_MAX 64

/* ── What can't be done ────────────────────────────────────────────────────────────────────────────────────────── */

static int refused(const char *reason, const char *message) {
  printf("%s %s\n", reason, message);
  return PORTER_REFUSED;
}

struct words {
  const char *link;
  const char *file;
  const char *read_only;
  const char *failed;
};

static const struct words of_source = {
    .link = "a symbolic link lies on the way to the directory in the drive",
    .file = "something on the way to the directory in the drive is not a directory",
    .read_only = "the directory is missing in the drive, and nothing can be made there",
    .failed = "the directory in the drive can't be opened",
};

static const struct words of_target = {
    .link = "a symbolic link lies on the way to the place of the mount",
    .file = "something on the way to the place of the mount is not a directory",
    .read_only = "the place of the mount is on a file system that is for reading only",
    .failed = "the place of the mount can't be opened",
};

static int not_opened(const struct words *words) {
  if (errno == ELOOP) return refused("symlink", words->link);
  if (errno == ENOTDIR) return refused("not_directory", words->file);
  if (errno == EROFS) return refused("read_only", words->read_only);
  return porter_failed(words->failed);
}

static int occupied(void) {
  return refused("occupied", "something else is mounted at the place of the mount");
}

static int changed_meanwhile(void) {
  errno = 0;
  return porter_failed("the way to the place of the mount was changed meanwhile");
}

/* ── Arguments ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool read_id(const char *text, uid_t *id) {
  long long number = porter_number(text, ID_MAX);
  *id = (uid_t)number;
  return number >= 0;
}

/* Nobody, as a dash, where nothing is to be made. */
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

static void say_seal(const struct seal *before) {
  if (before->known) {
    printf(" %u %u %u\n", before->uid, before->gid, before->mode);
  } else {
    printf(" -\n");
  }
}

/* ── The mount ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A directory of a drive as a mount that has no place yet. */
struct tree {
  int fd;
  struct way_end end;
};

static bool set_attributes(int fd, unsigned long long set, unsigned long long propagation) {
  struct mount_attr attributes = {.attr_set = set, .propagation = propagation};
  return mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0;
}

static int clone_tree(int directory, bool read_only, struct tree *tree) {
  tree->fd = open_tree(directory, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
  if (tree->fd < 0) return porter_failed("the directory in the drive can't be mounted");
  unsigned long long set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (read_only ? MOUNT_ATTR_RDONLY : 0);
  if (!set_attributes(tree->fd, set, MS_PRIVATE)) return porter_failed("the mount can't be given its limits");
  return way_look(tree->fd, &tree->end) ? PORTER_DONE : porter_failed("the mount can't be looked at");
}

static int open_source(const char *source, const char *subpath, bool read_only, struct owner owner, struct tree *tree) {
  struct way way;
  int top = open(source, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (top < 0 || !way_open(&way, top, subpath, owner.given ? &owner.id : NULL)) {
    return errno == ENOENT ? refused("source_missing", "the drive's directory is not there") : not_opened(&of_source);
  }
  int status = clone_tree(way.fd, read_only, tree);
  way_close(&way);
  close(top);
  return status;
}

static bool is_same(const struct way_end *one, const struct way_end *other) {
  return one->dev == other->dev && one->ino == other->ino && one->read_only == other->read_only;
}

/* Where its place is on a mount that others share, what is done below it from here on is not theirs. */
static int put_in_place(const struct tree *tree, int directory) {
  const unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
  if (move_mount(tree->fd, "", directory, "", flags) < 0) return porter_failed("the mount can't be put in its place");
  return set_attributes(tree->fd, 0, MS_PRIVATE) ? PORTER_DONE : porter_failed("the mount can't be made private");
}

static bool is_served(const struct tree *tree, int root, const char *target) {
  struct way way;
  struct way_end end;
  if (!way_open(&way, root, target, NULL)) return false;
  bool served = way_look(way.fd, &end) && end.mount_root && is_same(&end, &tree->end);
  way_close(&way);
  return served;
}

/* By the mount itself: the directory that it is on may have another name by now. */
static void take_back(const struct tree *tree) {
  if (fchdir(tree->fd) == 0) umount2(".", UMOUNT_NOFOLLOW | MNT_DETACH);
}

/* Sealed first: there is no moment in which something could be written to the place itself. */
static int mount_sealed(const struct tree *tree, int root, const char *target, const struct way *way) {
  struct seal before;
  if (!seal_directory(way->fd, &before)) return not_opened(&of_target);
  int status = put_in_place(tree, way->fd);
  if (status == PORTER_DONE && !is_served(tree, root, target)) status = changed_meanwhile();
  if (status == PORTER_DONE) {
    printf("mounted %llu %llu", tree->end.dev, tree->end.ino);
    say_seal(&before);
    return status;
  }
  take_back(tree);
  unseal_directory(way->fd, &before);
  return status;
}

static int mount_at(const struct tree *tree, int root, const char *target, uid_t owner) {
  struct way way;
  struct way_end end;
  if (!way_open(&way, root, target, &owner)) return not_opened(&of_target);
  if (!way_look(way.fd, &end)) return porter_failed("the place of the mount can't be looked at");
  if (way.parent < 0 || (end.mount_root && !is_same(&end, &tree->end))) return occupied();
  if (!end.mount_root) return mount_sealed(tree, root, target, &way);
  printf("mounted %llu %llu -\n", end.dev, end.ino);
  return PORTER_DONE;
}

int porter_mount(int argc, char **argv) {
  bool read_only;
  struct owner source_owner;
  uid_t target_owner;
  if (argc != 8 || !way_is_path(argv[3]) || !way_is_path(argv[4]) || !read_access(argv[5], &read_only) ||
      !read_owner(argv[6], &source_owner) || !read_id(argv[7], &target_owner)) {
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

/* ── Taking it off ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether a way is not there, or not a way any more: then nothing of ours is at its end. */
static bool leads_nowhere(void) {
  return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

/* An open directory would keep its mount busy: it is closed first. */
static int unmount_way(struct way *way) {
  close(way->fd);
  way->fd = -1;
  if (fchdir(way->parent) < 0 || porter_unmount_one(way->name) < 0) return porter_failed("the mount can't be taken off");
  return PORTER_DONE;
}

static int unmount_at(int root, const char *target, const struct seal *before) {
  for (int i = 0; i < STACK_MAX; i++) {
    struct way way;
    struct way_end end;
    if (!way_open(&way, root, target, NULL)) {
      return leads_nowhere() ? PORTER_DONE : porter_failed(of_target.failed);
    }
    if (way.parent < 0) return PORTER_USAGE;
    if (!way_look(way.fd, &end)) return porter_failed("the place of the mount can't be looked at");
    if (!end.mount_root) {
      return unseal_directory(way.fd, before) ? PORTER_DONE : porter_failed("the directory can't be given back");
    }
    int status = unmount_way(&way);
    way_close(&way);
    if (status != PORTER_DONE) return status;
  }
  errno = 0;
  return porter_failed("mounts keep coming back at the target");
}

int porter_unmount(int argc, char **argv) {
  struct seal before;
  if (argc != 6 || !way_is_path(argv[2]) || !read_seal(argv + 3, &before)) return PORTER_USAGE;
  int namespace, root;
  int status = instance_mounts(argv[0], argv[1], &namespace);
  if (status == PORTER_DONE) status = instance_enter(namespace, &root);
  return status == PORTER_DONE ? unmount_at(root, argv[2], &before) : status;
}

/* ── Without an instance ───────────────────────────────────────────────────────────────────────────────────────── */

static int open_root(const char *path) {
  return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int porter_unseal(int argc, char **argv) {
  struct way way;
  struct seal before;
  if (argc != 5 || !way_is_path(argv[1]) || !read_seal(argv + 2, &before)) return PORTER_USAGE;
  int root = open_root(argv[0]);
  if (root < 0 || !way_open(&way, root, argv[1], NULL)) {
    return leads_nowhere() ? PORTER_DONE : porter_failed(of_target.failed);
  }
  return unseal_directory(way.fd, &before) ? PORTER_DONE : porter_failed("the directory can't be given back");
}

/* The target is the host's own, so nothing has to be sealed. */
int porter_stage(int argc, char **argv) {
  bool read_only;
  struct owner owner;
  struct tree tree;
  struct way_end end;
  if (argc != 5 || !way_is_path(argv[1]) || !read_access(argv[3], &read_only) || !read_owner(argv[4], &owner)) {
    return PORTER_USAGE;
  }
  umask(022);
  int status = open_source(argv[0], argv[1], read_only, owner, &tree);
  if (status != PORTER_DONE) return status;
  int target = open_root(argv[2]);
  if (target < 0 || !way_look(target, &end)) return porter_failed(of_target.failed);
  if (end.mount_root && !is_same(&end, &tree.end)) return occupied();
  if (!end.mount_root) {
    status = put_in_place(&tree, target);
    if (status != PORTER_DONE) return status;
    int seen = open_root(argv[2]);
    if (seen < 0 || !way_look(seen, &end) || !end.mount_root || !is_same(&end, &tree.end)) return changed_meanwhile();
  }
  printf("staged %llu %llu\n", end.dev, end.ino);
  return PORTER_DONE;
}

/* ── The drive itself ──────────────────────────────────────────────────────────────────────────────────────────── */

struct acl {
  struct posix_acl_xattr_header header;
  struct posix_acl_xattr_entry entries[6];
};

static struct posix_acl_xattr_entry may(int tag, int permissions, uid_t id) {
  return (struct posix_acl_xattr_entry){htole16((uint16_t)tag), htole16((uint16_t)permissions), htole32(id)};
}

/*
 * Both users of a sandbox may write whatever either of them makes, in this sandbox or another. Whoever makes something
 * for himself alone still can: the rights that it is made with limit these.
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

/* The rights last: a change of the mode would limit them. */
int porter_drive_root(int argc, char **argv) {
  uid_t base, owner;
  if (argc != 3 || !read_id(argv[1], &base) || !read_id(argv[2], &owner) || base > ID_MAX - USER_ID) return PORTER_USAGE;
  int fd = open(argv[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return porter_failed("the directory can't be opened");
  if (fchown(fd, owner, owner) < 0 || fchmod(fd, 0755) < 0) return porter_failed("the directory can't be given its owner");
  return share(fd, base) ? PORTER_DONE : porter_failed("the directory can't be given its rights");
}
