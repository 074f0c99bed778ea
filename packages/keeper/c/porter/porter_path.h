/*
 * Walks to a directory whose path a sandbox may have manipulated. Every step is relative to an open directory and
 * follows no symbolic link, because the sandbox may have created a symbolic link that leads out of its own files.
 */
#ifndef HOLDFAST_PORTER_PATH_H
#define HOLDFAST_PORTER_PATH_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * The directory at the end of a path, open for reading, and its parent. If the path has no components, the parent is -1
 * and the name is empty.
 */
struct porter_path {
  int parent;
  int fd;
  char name[NAME_MAX + 1];
};

/* Returns whether the path is absolute and has no `..`, as the functions in this file require. */
bool porter_path_is_valid(const char *path);

/*
 * Walks from the directory `root`, which stays open, down to `path`. If `owner` is not NULL, missing directories are
 * created for that owner. On failure leaves nothing open and returns false with errno: ELOOP for a symbolic link,
 * ENOTDIR for anything else that is not a directory.
 */
bool porter_path_open(struct porter_path *path_to, int root, const char *path, const uid_t *owner);
void porter_path_close(struct porter_path *path_to);

/* The directory at the end of a path: its identity, and whether it is a mount point. */
struct path_end {
  unsigned long long dev;
  unsigned long long ino;
  bool mount_root;
  bool read_only;
};

bool porter_path_look(int fd, struct path_end *end);

/*
 * The owner and mode that a directory had before it was sealed. `known` is false if the directory was already sealed.
 */
struct seal {
  bool known;
  uid_t uid;
  gid_t gid;
  mode_t mode;
};

/*
 * Seals a directory: gives it to the host's root user and removes all write permission. The id of the host's root user
 * is not mapped inside, so even a sandbox's own root cannot write there. If a mount is missing, a write therefore fails
 * and does not land on the disk below. A directory that is already sealed stays sealed, and `known` is false. On
 * failure returns false with errno, and the directory is unchanged.
 */
bool seal_directory(int fd, struct seal *before);
/*
 * Restores the owner and mode of a sealed directory. Does nothing if the directory is not sealed, because then it is
 * not the directory that was sealed.
 */
bool unseal_directory(int fd, const struct seal *before);

#endif
