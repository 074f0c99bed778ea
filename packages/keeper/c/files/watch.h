/*
 * Watching files. One inotify descriptor serves all watches of a link and goes with it, so that nothing is left of them
 * in a keeper without links.
 *
 * A watch is the tree of the directories that it covers, found by reading them after they began to be watched: whatever is
 * made in between is seen twice rather than never. At its top stands the directory that holds the watched name, so that
 * the coming and going of that name itself is seen. No directory is kept open: each is opened anew from the watch's path,
 * and is believed to be the same where the kernel has the same watch for it.
 */
#ifndef HOLDFAST_WATCH_H
#define HOLDFAST_WATCH_H

#include <limits.h>

#include "path.h"
#include "server.h"

struct outcome handle_watch(struct request *request);
struct outcome handle_watch_read(struct request *request);
struct outcome handle_watch_end(struct request *request);

/* Takes what the kernel has seen, reads on in new directories, answers who waits. */
void watches_tick(struct link *link);
/* Ends all watches of a link. The memory stays until the turn is over. */
void watches_link_gone(struct link *link);
void watches_free(struct link *link);

/* ── Between the two files that make a watch ───────────────────────────────────────────────────────────────────── */

enum change { CREATED = 1, MODIFIED = 2, REMOVED = 3, OVERFLOWED = 4 };

/* How a directory waits to be read: for directories in it, or for telling all that is in it as well. */
enum reading { NOT_WANTED, QUIETLY, TELLING };

/* One directory of one watch. Several may be the same directory. */
struct watched {
  struct watch *watch;
  /* NULL for the one at the top. */
  struct watched *parent;
  struct watched *children;
  struct watched *next, **at;
  int wd;
  struct watched *next_by_wd, *next_by_name;
  enum reading reading;
  struct watched *next_to_read, **to_read_at;
  /* The last reading of its parent that found it, and the last event that it took. */
  uint32_t found, event;
  char name[];
};

struct watch {
  struct watches *all;
  bool used;
  /* Grows with each use of the slot, so that an old number never means a new watch. */
  uint32_t serial;
  bool recursive;
  /* Whoever asked for it has his answer: from here on nothing is to be missed. */
  bool begun;
  /* As it was asked for, and the name of what is watched in the directory at the top; none where it is that one itself. */
  char *path;
  /* The path is a link to a file, and the name that of the file. */
  bool follows;
  char name[NAME_MAX + 1];
  /* NULL once there is nothing more to be seen. */
  struct watched *top;
  size_t to_read;
  /* It could not watch all that it had to. */
  bool failed;
  /* Changes were dropped, which comes after those that are queued. */
  bool lost;
  uint8_t *queue;
  size_t queued, room, last;
  struct pending opening, reader;
  uint64_t reader_until;
  uint32_t reader_max;
};

#define WATCH_BUCKETS 4096u

struct watches {
  struct source source;
  /* The table of mounts, where this process can see it. */
  struct source mounts;
  struct link *link;
  bool readable, remounted;
  /* Everything is to be read again, once what is being read has been. */
  bool again;
  /* Lived time before which a change of the mounts is not looked into. */
  uint64_t remount_at;
  size_t directories;
  uint32_t event;
  struct watched *by_wd[WATCH_BUCKETS], *by_name[WATCH_BUCKETS];
  struct watched *to_read, **to_read_last;
  struct {
    struct watched *directory;
    int fd;
    uint32_t number;
  } scan;
  struct watch list[WATCHES_MAX];
};

/* Begins to watch, with the place of its path; its directories are read from then on. */
struct outcome tree_begin(struct watch *watch, const struct place *place);
void tree_end(struct watch *watch);
void tree_take(struct watches *all, const void *events, size_t size);
/* Where that is due: something was missed, and perhaps some directories are not what they were. */
void tree_read_again(struct watches *all);
/* Reads on for a while. False where nothing is left to be read. */
bool tree_read_on(struct watches *all);

/* Queues a change, by the path from what is watched; an empty one is that itself. */
void watch_tell(struct watch *watch, enum change change, const char *relative, bool directory);

#endif
