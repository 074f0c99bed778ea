/* Resolves the path in a request to a directory descriptor and a name in that directory. */
#ifndef HOLDFAST_PATH_H
#define HOLDFAST_PATH_H

#include <limits.h>
#include <sys/stat.h>

#include "loop/server.h"

/* The place to which a path leads: an open directory and a name in it. An entry of that name need not exist. */
struct place {
  int dir;
  char name[NAME_MAX + 1];
};

/* Owner of missing parent directories that are created. */
struct owner {
  uint32_t uid;
  uint32_t gid;
};

/*
 * Finds the place of an absolute path. Symbolic links in parent directories are followed; the last component is not
 * examined. If `make_parents` is not NULL, missing parent directories are created for that owner. If the path is
 * refused, no descriptor stays open.
 */
struct outcome place_find(const struct file_rules *rules, struct slice path, const struct owner *make_parents,
                          struct place *place);
/* Finds the place of a path in a request, like place_find. Must be called after all fields of the request
 * were read. */
struct outcome place_of(const struct request *request, struct slice path, struct place *place);
/* If the place is a symbolic link, moves to the place of its target, which may not exist. */
struct outcome place_follow(const struct file_rules *rules, struct place *place);
void place_close(struct place *place);

/* Creates one directory with exactly this owner and mode. Returns 0, or -1 with errno. */
int make_directory(int dir, const char *name, const struct owner *owner, uint32_t mode);

/* Stats an open descriptor. Refuses files that are reserved for the keeper. */
struct outcome stat_open(const struct file_rules *rules, int fd, struct statx *stat);
/*
 * Opens the place and stats the result. If the last component is a symbolic link, it is followed unless `flags`
 * contains O_NOFOLLOW.
 */
struct outcome place_open(const struct file_rules *rules, const struct place *place, int flags, int *fd,
                          struct statx *stat);

#endif
