/* From a path in a request to a directory descriptor and a name in it. */
#ifndef HOLDFAST_PATH_H
#define HOLDFAST_PATH_H

#include <limits.h>
#include <sys/stat.h>

#include "server.h"

/* What a path names, whether it exists or not: an entry of an open directory. */
struct place {
  int dir;
  char name[NAME_MAX + 1];
};

/* Who owns the missing parent directories that get made on the way. */
struct owner {
  uint32_t uid;
  uint32_t gid;
};

/*
 * Finds the place of an absolute path. Symbolic links on the way are followed, the last part is not looked at.
 * With `make_parents` missing directories are made for that owner. On a refusal nothing stays open.
 */
struct outcome place_find(const struct file_rules *rules, struct slice path, const struct owner *make_parents,
                          struct place *place);
/* The same for a path of a request, all of whose fields were read. */
struct outcome place_of(const struct request *request, struct slice path, struct place *place);
/* Where the place is a symbolic link, moves on to what it names, existing or not. */
struct outcome place_follow(const struct file_rules *rules, struct place *place);
void place_close(struct place *place);

/* Makes one directory that ends up with exactly this owner and mode. 0 or -1 with errno. */
int make_directory(int dir, const char *name, const struct owner *owner, uint32_t mode);

/* Stats an open descriptor; refuses what belongs to the keeper. */
struct outcome stat_open(const struct file_rules *rules, int fd, struct statx *stat);
/* Opens without following the last part where `flags` say so, and stats what was opened. */
struct outcome place_open(const struct file_rules *rules, const struct place *place, int flags, int *fd,
                          struct statx *stat);

#endif
