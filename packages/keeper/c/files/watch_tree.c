#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files/watch.h"

#define EVENTS                                                                                                     \
  (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF |   \
   IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK | IN_MASK_ADD)
#define DIRECTORY_GONE (IN_IGNORED | IN_DELETE_SELF | IN_UNMOUNT)
#define OWN_PREFIX ".holdfast-"
#define OWN_DIGITS 16

static const struct file_rules *rules_of(const struct watch *watch) {
  return &watch->all->link->server->files;
}

/* Returns whether the directory is a keyhole: the top of a watch that watches only a single name in it. */
static bool is_keyhole(const struct watched *directory) {
  return !directory->parent && directory->watch->name[0];
}

static bool has_watched_children(const struct watched *directory) {
  return directory->watch->recursive || is_keyhole(directory);
}

/* ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static size_t bucket_of_wd(int wd) {
  return (unsigned)wd % WATCH_BUCKETS;
}

static size_t bucket_of_name(const struct watched *parent, const char *name) {
  uint64_t hash = (uintptr_t)parent >> 4;
  for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
  return (hash ^ hash >> 32) % WATCH_BUCKETS;
}

static struct watched *find_by_wd(const struct watches *all, int wd) {
  struct watched *at = all->by_wd[bucket_of_wd(wd)];
  while (at && at->wd != wd) at = at->next_by_wd;
  return at;
}

/* Finds a directory that has this inotify watch descriptor and has not processed the current event yet. */
static struct watched *find_by_event(const struct watches *all, int wd) {
  struct watched *at = all->by_wd[bucket_of_wd(wd)];
  while (at && (at->wd != wd || at->event == all->event)) at = at->next_by_wd;
  return at;
}

static struct watched *find_child(const struct watched *parent, const char *name) {
  struct watched *at = parent->watch->all->by_name[bucket_of_name(parent, name)];
  while (at && (at->parent != parent || strcmp(at->name, name) != 0)) at = at->next_by_name;
  return at;
}

static void unlink_tables(struct watches *all, struct watched *directory) {
  struct watched **at = &all->by_wd[bucket_of_wd(directory->wd)];
  while (*at != directory) at = &(*at)->next_by_wd;
  *at = directory->next_by_wd;
  at = &all->by_name[bucket_of_name(directory->parent, directory->name)];
  while (*at != directory) at = &(*at)->next_by_name;
  *at = directory->next_by_name;
}

/* ── Directories that wait to be read ──────────────────────────────────────────────────────────────────────────── */

static void scan_stop(struct watches *all) {
  if (all->scan.fd >= 0) close(all->scan.fd);
  all->scan.fd = -1;
  all->scan.directory = NULL;
}

static void unqueue(struct watched *directory) {
  struct watches *all = directory->watch->all;
  if (!directory->to_read_at) return;
  *directory->to_read_at = directory->next_to_read;
  if (directory->next_to_read) {
    directory->next_to_read->to_read_at = directory->to_read_at;
  } else {
    all->to_read_last = directory->to_read_at;
  }
  directory->to_read_at = NULL;
  directory->next_to_read = NULL;
}

/* Removes the directory from the queue of directories that wait to be read. */
static void read_settled(struct watched *directory) {
  if (directory->reading == NOT_WANTED) return;
  unqueue(directory);
  directory->reading = NOT_WANTED;
  directory->watch->to_read--;
  if (directory->watch->all->scan.directory == directory) scan_stop(directory->watch->all);
}

/* Queues a directory for reading. If it is being read, the reading starts again from the beginning. */
static void read_later(struct watched *directory, enum reading reading) {
  struct watches *all = directory->watch->all;
  if (reading == QUIETLY && !directory->watch->recursive) return;
  if (directory->reading > reading) reading = directory->reading;
  if (!directory->to_read_at) read_settled(directory);
  directory->reading = reading;
  if (directory->to_read_at) return;
  directory->watch->to_read++;
  directory->to_read_at = all->to_read_last;
  *all->to_read_last = directory;
  all->to_read_last = &directory->next_to_read;
}

/* ── Adding and dropping ───────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Adds an inotify watch for an open directory, through the working directory. A path cannot be used: the directory's
 * name could be a symbolic link by now, and a jail has no /proc through which a path could refer to a descriptor.
 * IN_MASK_ADD preserves the mask of an existing inotify watch: replacing the mask would lose events that occur in
 * between.
 */
static int add_wd(const struct watches *all, int fd) {
  return fchdir(fd) < 0 ? -1 : inotify_add_watch(all->source.fd, ".", EVENTS);
}

static void release_wd(const struct watches *all, int wd) {
  if (!find_by_wd(all, wd)) inotify_rm_watch(all->source.fd, wd);
}

static struct watched *add(struct watch *watch, struct watched *parent, const char *name, int wd) {
  struct watches *all = watch->all;
  size_t size = strlen(name) + 1;
  struct watched *directory = NULL;
  if (all->directories < WATCH_DIRECTORIES_MAX) directory = malloc(sizeof *directory + size);
  if (!directory) {
    release_wd(all, wd);
    return NULL;
  }
  *directory = (struct watched){.watch = watch, .parent = parent, .wd = wd, .event = all->event};
  memcpy(directory->name, name, size);
  struct watched **by_wd = &all->by_wd[bucket_of_wd(wd)], **by_name = &all->by_name[bucket_of_name(parent, name)];
  directory->next_by_wd = *by_wd;
  directory->next_by_name = *by_name;
  *by_wd = *by_name = directory;
  directory->at = parent ? &parent->children : &watch->top;
  directory->next = *directory->at;
  if (directory->next) directory->next->at = &directory->next;
  *directory->at = directory;
  all->directories++;
  return directory;
}

static void drop_one(struct watched *directory) {
  struct watches *all = directory->watch->all;
  read_settled(directory);
  unlink_tables(all, directory);
  *directory->at = directory->next;
  if (directory->next) directory->next->at = directory->at;
  release_wd(all, directory->wd);
  all->directories--;
  free(directory);
}

/* Drops a directory and everything below it, from the bottom up. */
static void drop(struct watched *directory) {
  struct watched *at = directory;
  for (;;) {
    while (at->children) at = at->children;
    struct watched *above = at->parent;
    bool last = at == directory;
    drop_one(at);
    if (last) return;
    at = above;
  }
}

void tree_end(struct watch *watch) {
  if (watch->top) drop(watch->top);
}

/* ── Reporting ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Writes the path relative to the top of the watch. It is written from its end to its beginning, because a directory
 * only knows its parent.
 */
static const char *write_relative(char text[PATH_MAX], const struct watched *directory, const char *name) {
  char *at = text + PATH_MAX - 1;
  *at = 0;
  for (; !is_keyhole(directory); directory = directory->parent) {
    size_t size = strlen(name);
    if ((size_t)(at - text) < size + 1) return NULL;
    if (*at) *--at = '/';
    at -= size;
    memcpy(at, name, size);
    name = directory->name;
    if (!directory->parent) break;
  }
  return at;
}

/*
 * Reports a change of a directory entry. If only that entry of the directory is watched (a keyhole), the reported path
 * is the watched path itself.
 */
static void report(const struct watched *directory, enum change change, const char *name, bool below) {
  char text[PATH_MAX];
  const char *relative = write_relative(text, directory, name);
  if (relative) watch_report(directory->watch, change, relative, below);
}

/*
 * Called when reading a directory found a change for which there was no event. If the request that opened the watch was
 * already answered, records that changes were lost.
 */
static void missed(struct watch *watch) {
  if (watch->begun) watch->lost = true;
}

/* ── Ending a watch ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* Ends the watch with a failure, because it cannot see everything that was requested. */
static void fail(struct watch *watch) {
  watch->failed = true;
  tree_end(watch);
}

/* Ends the watch because its path no longer leads to the watched place, and reports the watched path as
 * removed. */
static void end_gone(struct watch *watch) {
  watch_report(watch, REMOVED, "", !watch->name[0] || watch->top->children);
  tree_end(watch);
}

static bool is_shortage(int error) {
  return error == ENOSPC || error == ENOMEM || error == EMFILE || error == ENFILE;
}

/* ── Opening ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_same(const struct watches *all, int fd, int wd) {
  int found = add_wd(all, fd);
  if (found >= 0 && found != wd) release_wd(all, found);
  return found == wd;
}

/* Opens the top directory of a watch as O_PATH. Returns -1 on failure, which ends the watch. */
static int open_top(struct watch *watch) {
  struct place place;
  struct slice path = {(const uint8_t *)watch->path, strlen(watch->path)};
  struct outcome outcome = place_find(rules_of(watch), path, NULL, &place);
  if (outcome.kind == ANSWER && watch->follows) outcome = place_follow(rules_of(watch), &place);
  if (outcome.kind == ANSWER && strcmp(place.name, watch->name[0] ? watch->name : ".") == 0 &&
      is_same(watch->all, place.dir, watch->top->wd)) {
    return place.dir;
  }
  place_close(&place);
  if (is_shortage(outcome.error)) {
    fail(watch);
  } else {
    end_gone(watch);
  }
  return -1;
}

/*
 * Opens a subdirectory. Follows a symbolic link only if the link is the watched path itself. On failure returns -1
 * with errno.
 */
static int open_entry(const struct watched *parent, int dir, const char *name, int flags) {
  const struct watch *watch = parent->watch;
  int fd;
  if (!is_keyhole(parent)) flags |= O_NOFOLLOW;
  struct statx stat;
  struct place place = {.dir = dir};
  strcpy(place.name, name);
  struct outcome outcome = place_open(rules_of(watch), &place, flags | O_DIRECTORY, &fd, &stat);
  if (outcome.kind == ANSWER) return fd;
  errno = outcome.error ? outcome.error : EACCES;
  return -1;
}

/*
 * Opens a directory of a watch, step by step from the open top directory `fd`, and closes `fd`. Returns -1 with errno
 * if a step fails.
 */
static int walk_down(struct watched *directory, int fd, int flags) {
  struct watched *path[PATH_MAX / 2];
  size_t count = 0;
  for (struct watched *at = directory; at->parent; at = at->parent) path[count++] = at;
  int next = count == 0 ? openat(fd, ".", flags | O_DIRECTORY | O_CLOEXEC) : fd;
  for (size_t i = count; next >= 0 && i-- > 0;) {
    next = open_entry(path[i]->parent, fd, path[i]->name, i == 0 ? flags : O_PATH);
    if (i > 0 && next >= 0) {
      close(fd);
      fd = next;
    }
  }
  int error = errno;
  close(fd);
  errno = error;
  return next;
}

/*
 * Opens a directory of the tree if its path still leads to it. Returns -1 if the path leads elsewhere or cannot be
 * opened, or if the watch has ended.
 */
static int open_watched(struct watched *directory, int flags) {
  struct watch *watch = directory->watch;
  int top = open_top(watch);
  if (top < 0) return -1;
  int fd = walk_down(directory, top, flags);
  if (fd < 0 && is_shortage(errno)) fail(watch);
  if (fd < 0 || is_same(watch->all, fd, directory->wd)) return fd;
  close(fd);
  return -1;
}

/* ── Entries that are directories ────────────────────────────────────────────────────────────────────────────────── */

/*
 * Returns whether the name is proc, sys, dev or .holdfast, and `dir` is the root directory. Directories of these names
 * in the root contain no files of the sandbox and are not watched.
 */
static bool is_passed_over(int dir, const char *name) {
  static const char *const names[] = {"proc", "sys", "dev", ".holdfast"};
  struct stat here, root;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    return fstat(dir, &here) == 0 && stat("/", &root) == 0 && here.st_dev == root.st_dev && here.st_ino == root.st_ino;
  }
  return false;
}

/* Returns whether the path of an entry is longer than a client can use. Entries with a longer path are not watched. */
static bool is_too_long(const struct watched *parent, const char *name) {
  size_t size = strlen(parent->watch->path) + strlen(name) + 2;
  for (; parent->parent; parent = parent->parent) size += strlen(parent->name) + 1;
  return size >= PATH_MAX;
}

/*
 * Watches the directory that has this name now, and drops another directory that was watched under this name. `dir` is
 * the open parent. Returns whether the watch continues. If the watch continues although the directory could not be
 * opened or watched, errno is the reason.
 */
static bool watch_entry(struct watched *parent, int dir, const char *name, enum reading reading) {
  struct watch *watch = parent->watch;
  if (!is_keyhole(parent) && (is_too_long(parent, name) || is_passed_over(dir, name))) return true;
  int fd = open_entry(parent, dir, name, O_PATH);
  int wd = fd < 0 ? -1 : add_wd(watch->all, fd);
  int error = errno;
  if (fd >= 0) close(fd);
  if (wd < 0 && is_shortage(error)) {
    fail(watch);
    return false;
  }
  struct watched *known = find_child(parent, name);
  if (wd >= 0 && known && known->wd == wd) {
    known->found = watch->all->scan.number;
    if (reading == QUIETLY) read_later(known, QUIETLY);
    return true;
  }
  if (reading == QUIETLY && (known || wd >= 0)) missed(watch);
  if (known) drop(known);
  errno = error;
  if (wd < 0) return true;
  struct watched *child = add(watch, parent, name, wd);
  if (!child) {
    fail(watch);
    return false;
  }
  child->found = watch->all->scan.number;
  read_later(child, reading);
  return true;
}

static void watch_entry_of(struct watched *parent, const char *name, enum reading reading) {
  int dir = open_watched(parent, O_PATH);
  if (dir < 0) return;
  watch_entry(parent, dir, name, reading);
  close(dir);
}

/*
 * Queues the tree of a watch for reading. If only one name in the top is watched, the directory of that name is queued
 * and not the top.
 */
static void read_all(struct watch *watch) {
  if (is_keyhole(watch->top)) {
    watch_entry_of(watch->top, watch->name, QUIETLY);
  } else {
    read_later(watch->top, QUIETLY);
  }
}

struct outcome tree_begin(struct watch *watch, const struct place *place) {
  int wd = add_wd(watch->all, place->dir);
  if (wd < 0 && errno != ENOSPC) return system_error(errno);
  if (wd >= 0 && add(watch, NULL, "", wd)) {
    if (!watch->name[0]) read_later(watch->top, QUIETLY);
    bool watched = !watch->name[0] || watch_entry(watch->top, place->dir, watch->name, QUIETLY);
    if (watched && !watch->follows && watch->name[0] && !watch->top->children) return system_error(errno);
    if (watched) return answered();
  }
  return refused(LIMIT, "too many directories are watched");
}

/* ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Returns whether the name is one of the keeper's own: a file being written, or a directory being removed. */
static bool is_own(const char *name) {
  if (strncmp(name, OWN_PREFIX, strlen(OWN_PREFIX)) != 0) return false;
  name += strlen(OWN_PREFIX);
  if (strncmp(name, "gone-", strlen("gone-")) == 0) name += strlen("gone-");
  return strspn(name, "0123456789abcdef") == OWN_DIGITS && name[OWN_DIGITS] == 0;
}

static bool is_directory(int dir, const struct dirent64 *entry) {
  struct stat stat;
  if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
  return fstatat(dir, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(stat.st_mode);
}

/* Handles one directory entry that was read. Returns false if the directory is not being read any more. */
static bool take_entry(struct watches *all, const struct dirent64 *entry) {
  struct watched *directory = all->scan.directory;
  if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || is_own(entry->d_name)) return true;
  bool below = is_directory(all->scan.fd, entry);
  if (directory->reading == REPORTING) report(directory, CREATED, entry->d_name, below);
  if (!below || !has_watched_children(directory)) return true;
  return watch_entry(directory, all->scan.fd, entry->d_name, directory->reading);
}

/* Drops children that the scan did not find. They no longer exist, and the events of their removal were lost. */
static void scan_end(struct watches *all) {
  struct watched *directory = all->scan.directory, *next;
  read_settled(directory);
  for (struct watched *child = directory->children; child; child = next) {
    next = child->next;
    if (child->found == all->scan.number) continue;
    missed(child->watch);
    drop(child);
  }
}

static void scan_begin(struct watches *all) {
  struct watched *directory = all->to_read;
  int fd = open_watched(directory, O_RDONLY);
  /*
   * If the directory could not be opened, it has been dropped, or will be dropped when the event of its removal
   * arrives.
   */
  if (fd < 0) {
    if (all->to_read == directory) read_settled(directory);
    return;
  }
  unqueue(directory);
  all->scan.directory = directory;
  all->scan.fd = fd;
  all->scan.number++;
}

static void scan_step(struct watches *all) {
  _Alignas(struct dirent64) char buffer[WATCH_READ_BUFFER];
  const struct watched *directory = all->scan.directory;
  long size = syscall(SYS_getdents64, all->scan.fd, buffer, sizeof buffer);
  if (size <= 0) {
    scan_end(all);
    return;
  }
  for (long at = 0; at < size;) {
    struct dirent64 *entry = (struct dirent64 *)(buffer + at);
    at += entry->d_reclen;
    if (!take_entry(all, entry) || all->scan.directory != directory) return;
  }
}

bool tree_read_on(struct watches *all) {
  for (int i = 0; i < WATCH_TURN_READS && (all->scan.directory || all->to_read); i++) {
    if (!all->scan.directory) scan_begin(all);
    if (all->scan.directory) scan_step(all);
  }
  return all->scan.directory || all->to_read;
}

/* ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Handles an event about a directory itself, and not about an entry in it. If the directory is not the top, its changes
 * are reported through the events of its parent.
 */
static void take_own_event(struct watched *directory, uint32_t mask) {
  struct watch *watch = directory->watch;
  if (!directory->parent && mask & (DIRECTORY_GONE | IN_MOVE_SELF)) {
    end_gone(watch);
  } else if (mask & DIRECTORY_GONE) {
    if (mask & IN_UNMOUNT) watch->lost = true;
    drop(directory);
  } else if (mask & IN_ATTRIB && !directory->parent && !is_keyhole(directory)) {
    watch_report(watch, MODIFIED, "", true);
  }
}

/*
 * Handles an event of a directory entry. After a name was moved away, it is examined again, because an exchange of
 * two directories produces first a creation and then a removal of the same name.
 */
static void take_entry_event(struct watched *directory, uint32_t mask, const char *name) {
  bool keyhole = is_keyhole(directory), below = mask & IN_ISDIR;
  bool gone = mask & (IN_DELETE | IN_MOVED_FROM), come = mask & (IN_CREATE | IN_MOVED_TO);
  if (keyhole ? strcmp(name, directory->watch->name) != 0 : is_own(name)) return;
  report(directory, gone ? REMOVED : come ? CREATED : MODIFIED, name, below);
  if (!keyhole && !(below && has_watched_children(directory))) return;
  struct watched *child = gone ? find_child(directory, name) : NULL;
  if (child) drop(child);
  if (mask & (IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM)) watch_entry_of(directory, name, REPORTING);
}

void tree_read_again(struct watches *all) {
  if (!all->again || all->to_read || all->scan.directory) return;
  all->again = false;
  for (size_t i = 0; i < WATCHES_MAX; i++) {
    if (all->list[i].used && all->list[i].top) read_all(&all->list[i]);
  }
}

static void take_overflow(struct watches *all) {
  for (size_t i = 0; i < WATCHES_MAX; i++) all->list[i].lost = true;
  all->again = true;
}

static void take_event(struct watches *all, const struct inotify_event *event) {
  struct watched *directory;
  if (event->mask & IN_Q_OVERFLOW) {
    take_overflow(all);
    return;
  }
  all->event++;
  while ((directory = find_by_event(all, event->wd))) {
    directory->event = all->event;
    if (event->len == 0 || event->mask & DIRECTORY_GONE) {
      take_own_event(directory, event->mask);
    } else {
      take_entry_event(directory, event->mask, event->name);
    }
  }
}

void tree_take(struct watches *all, const void *events, size_t size) {
  const char *at = events;
  for (const char *end = at + size; at < end;) {
    const struct inotify_event *event = (const struct inotify_event *)at;
    at += sizeof *event + event->len;
    take_event(all, event);
  }
}
