/*
 * The way to a directory that a sandbox may have had its hands on. Every step is relative to an open directory and follows
 * no link, so that what was planted on the way leads nowhere.
 */
#ifndef HOLDFAST_PORTER_WAY_H
#define HOLDFAST_PORTER_WAY_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* A directory, open for reading, and the one that it was found in: -1 and no name where that is the way's beginning. */
struct way {
  int parent;
  int fd;
  char name[NAME_MAX + 1];
};

/* Absolute, and without a part that leads up: what the functions here take. */
bool way_is_path(const char *path);

/*
 * Walks from the directory `root`, which stays open, down to `path`. Missing directories are made for `owner` where it is
 * given. False with errno, and nothing open: ELOOP for a link, ENOTDIR for what is no directory.
 */
bool way_open(struct way *way, int root, const char *path, const uid_t *owner);
void way_close(struct way *way);

/* What is at the end of a way: which directory it is, and whether something is mounted there. */
struct way_end {
  unsigned long long dev;
  unsigned long long ino;
  bool mount_root;
  bool read_only;
};

bool way_look(int fd, struct way_end *end);

/* A directory as it was; `known` is false where that can't be told any more. */
struct seal {
  bool known;
  uid_t uid;
  gid_t gid;
  mode_t mode;
};

/*
 * Gives a directory to the host's root, and the right to write to nobody. That id has no name inside: a sandbox's own root
 * can't write there either. So what is written where a mount is missing fails, and does not land on the disk below.
 * One that is sealed already stays so, and is not known. False with errno, and it is as it was.
 */
bool seal_directory(int fd, struct seal *before);
/* Gives it back. What is not sealed is another directory, and is left alone. */
bool unseal_directory(int fd, const struct seal *before);

#endif
