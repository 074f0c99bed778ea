/*
 * Watches files. One inotify descriptor serves all watches of a link and is closed with the link, so a keeper without
 * links has no watches. A watch consists of a tree of directories.
 *
 * A directory is first watched and then read. An entry that is created in between may be reported twice, but is never
 * missed. The top of the tree is the directory that contains the watched name, so that the creation and removal of that
 * name are seen.
 *
 * Directories are not kept open. A directory is opened again by its path, and is still the same directory if the kernel
 * returns the same watch descriptor for it.
 */
#ifndef HOLDFAST_WATCH_H
#define HOLDFAST_WATCH_H

#include <limits.h>

#include "files/path.h"
#include "loop/server.h"

struct outcome handle_watch(struct request *request);
struct outcome handle_watch_read(struct request *request);
struct outcome handle_watch_end(struct request *request);

/* Processes kernel events, continues reading new directories, and answers waiting readers. */
void watches_tick(struct link *link);
/* Ends all watches of a link. Their memory stays valid until the end of the loop's turn. */
void watches_link_gone(struct link *link);
void watches_free(struct link *link);

/* ── Shared by watch.c and watch_tree.c ────────────────────────────────────────────────────────────────────────── */

enum change { CREATED = 1, MODIFIED = 2, REMOVED = 3, OVERFLOWED = 4 };

/*
 * Whether a directory waits to be read, and why: QUIETLY only to find subdirectories, REPORTING also to report
 * everything in it as created.
 */
enum reading { NOT_WANTED, QUIETLY, REPORTING };

/* One directory of one watch. Several of these structures may refer to the same directory. */
struct watched {
  struct watch *watch;
  /* NULL for the top. */
  struct watched *parent;
  struct watched *children;
  struct watched *next, **at;
  int wd;
  struct watched *next_by_wd, *next_by_name;
  enum reading reading;
  struct watched *next_to_read, **to_read_at;
  /*
   * found: the number of the parent's last scan that found this directory. event: the number of the last inotify event
   * that this directory has processed.
   */
  uint32_t found, event;
  char name[];
};

struct watch {
  struct watches *all;
  bool used;
  /*
   * Incremented with each use of the slot and part of the watch's number, so that an old number never denotes a new
   * watch.
   */
  uint32_t serial;
  bool recursive;
  /* Whether the request that opened the watch was answered. From then on no change may be missed. */
  bool begun;
  /* The path as requested. */
  char *path;
  /* Whether the requested path is a symbolic link to a file. If so, `name` is the name of that file. */
  bool follows;
  /* The watched name in the top directory; empty if the top itself is watched. */
  char name[NAME_MAX + 1];
  /* The top of the tree; NULL once the watch has ended. */
  struct watched *top;
  size_t to_read;
  /* Whether the watch was ended because a directory could not be watched. */
  bool failed;
  /*
   * Whether changes are missing, because the queue was full or an event was lost. The missing changes came after those
   * in the queue.
   */
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
  /* The mount table, if this process can read it. */
  struct source mounts;
  struct link *link;
  bool readable, remounted;
  /* Whether to read all directories again once the reading in progress is complete. */
  bool again;
  /* When the next mount change may be examined, in lived time, which excludes pauses and standby. */
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

/* Starts to watch the place of a path. The directories of the watch are read in later turns. */
struct outcome tree_begin(struct watch *watch, const struct place *place);
void tree_end(struct watch *watch);
void tree_take(struct watches *all, const void *events, size_t size);
/*
 * Queues all trees for reading if `again` is set and no reading is in progress. `again` is set after the kernel dropped
 * events or a mount changed: directories may then have been created or replaced without an event.
 */
void tree_read_again(struct watches *all);
/* Reads queued directories, a limited number per turn. Returns false if nothing is left to read. */
bool tree_read_on(struct watches *all);

/* Queues a change of a path relative to the watched path; an empty path is the watched path itself. */
void watch_report(struct watch *watch, enum change change, const char *relative, bool directory);

#endif
