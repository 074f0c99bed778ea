#include "files/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Size of a change without its path. */
#define CHANGE_HEAD 6u

/* ── Queue of changes ──────────────────────────────────────────────────────────────────────────────────────────── */

static bool queue_grow(struct watch *watch, size_t size) {
  size_t wanted = watch->queued + size;
  if (wanted > WATCH_QUEUE_MAX) return false;
  if (wanted <= watch->room) return true;
  size_t room = 2 * watch->room > wanted ? 2 * watch->room : wanted + 1024;
  uint8_t *grown = realloc(watch->queue, room);
  if (!grown) return false;
  watch->queue = grown;
  watch->room = room;
  return true;
}

static size_t change_size(const uint8_t *change) {
  return CHANGE_HEAD + load_u32(change + 2);
}

/*
 * Queues the change in wire format. If the reader is too slow, further changes are dropped and an overflow is
 * reported instead. Consecutive equal changes are merged into one.
 */
void watch_report(struct watch *watch, enum change change, const char *relative, bool directory) {
  size_t length = strlen(relative), size = CHANGE_HEAD + length;
  if (watch->lost) return;
  if (!queue_grow(watch, size)) {
    watch->lost = true;
    return;
  }
  uint8_t *at = watch->queue + watch->queued;
  at[0] = (uint8_t)change;
  at[1] = directory;
  store_u32(at + 2, (uint32_t)length);
  memcpy(at + CHANGE_HEAD, relative, length);
  const uint8_t *last = watch->queue + watch->last;
  if (watch->queued > 0 && change_size(last) == size && memcmp(last, at, size) == 0) return;
  watch->last = watch->queued;
  watch->queued += size;
}

/* ── Watches ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void inotify_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  ((struct watches *)source)->readable = true;
}

static void mounts_ready(struct server *server, struct source *source, uint32_t events) {
  (void)server;
  (void)events;
  ((struct watches *)((char *)source - offsetof(struct watches, mounts)))->remounted = true;
}

/*
 * Changes the working directory to the root. Watching a directory makes it the working directory, and a working
 * directory keeps its mount busy.
 */
static void step_out(void) {
  int left = chdir("/");
  (void)left;
}

static struct watches *watches_of(struct link *link) {
  if (link->watches) return link->watches;
  struct watches *all = calloc(1, sizeof *all);
  if (!all) return NULL;
  all->source = (struct source){.fd = -1, .ready = inotify_ready};
  all->mounts = (struct source){.fd = -1, .ready = mounts_ready};
  all->link = link;
  all->scan.fd = -1;
  all->to_read_last = &all->to_read;
  link->watches = all;
  return all;
}

/*
 * Watches the mount table, because mounting over a watched directory produces no inotify event. In a jail there is no
 * mount table, and the jail's mounts cannot change. A file at the path of the mount table may belong to the sandbox, so
 * it is used only if it is on a real procfs.
 */
static void mounts_open(struct watches *all) {
  struct statfs kind;
  int fd = open("/proc/self/mountinfo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  all->mounts.fd = fd;
  bool right = fstatfs(fd, &kind) == 0 && kind.f_type == PROC_SUPER_MAGIC;
  if (!right || !source_watch(all->link->server, &all->mounts, EPOLLPRI)) source_close(&all->mounts);
}

static bool inotify_open(struct watches *all) {
  if (all->source.fd >= 0) return true;
  all->source.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (all->source.fd < 0) return false;
  if (source_watch(all->link->server, &all->source, EPOLLIN)) {
    mounts_open(all);
    return true;
  }
  source_close(&all->source);
  return false;
}

static void inotify_close(struct watches *all) {
  source_close(&all->source);
  source_close(&all->mounts);
}

static struct watch *watch_new(struct watches *all) {
  for (size_t i = 0; i < WATCHES_MAX; i++) {
    struct watch *watch = &all->list[i];
    if (watch->used) continue;
    *watch = (struct watch){.all = all, .used = true, .serial = (watch->serial + 1) & 0x3FFFFFFu};
    return watch;
  }
  return NULL;
}

static uint32_t watch_number(const struct watch *watch) {
  return watch->serial * WATCHES_MAX + (uint32_t)(watch - watch->all->list);
}

static struct watch *watch_find(struct link *link, uint32_t number) {
  if (!link->watches) return NULL;
  struct watch *watch = &link->watches->list[number % WATCHES_MAX];
  bool right = watch->used && !watch->opening.link && watch->serial == number / WATCHES_MAX;
  return right ? watch : NULL;
}

static void watch_free(struct watch *watch) {
  tree_end(watch);
  free(watch->path);
  free(watch->queue);
  watch->path = NULL;
  watch->queue = NULL;
  watch->used = false;
}

/* Closes the inotify descriptor if the link has no watch any more. */
static void close_unused(struct watches *all) {
  for (size_t i = 0; i < WATCHES_MAX; i++) {
    if (all->list[i].used) return;
  }
  inotify_close(all);
}

void watches_link_gone(struct link *link) {
  if (!link->watches) return;
  inotify_close(link->watches);
  for (size_t i = 0; i < WATCHES_MAX; i++) {
    if (link->watches->list[i].used) watch_free(&link->watches->list[i]);
  }
}

void watches_free(struct link *link) {
  free(link->watches);
  link->watches = NULL;
}

/* ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome bad_watch(void) {
  return refused(BAD_HANDLE, "no such watch on this link");
}

/*
 * Finds the place to watch. If the path is a symbolic link to a directory, the directory is watched under the link's
 * name. If it is a symbolic link to a file, the file is watched at its real location.
 */
static struct outcome find_watched(const struct file_rules *rules, struct watch *watch, struct slice path,
                                   struct place *place) {
  int fd;
  struct statx stat;
  struct outcome outcome = place_find(rules, path, NULL, place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = place_open(rules, place, O_PATH, &fd, &stat);
  if (outcome.kind != ANSWER) {
    place_close(place);
    return outcome;
  }
  close(fd);
  watch->follows = !S_ISDIR(stat.stx_mode);
  if (watch->follows) outcome = place_follow(rules, place);
  if (outcome.kind == ANSWER) strcpy(watch->name, strcmp(place->name, ".") == 0 ? "" : place->name);
  return outcome;
}

static struct outcome watch_begin(struct watch *watch, struct slice path) {
  struct place place;
  watch->path = strndup((const char *)path.data, path.size);
  if (!watch->path) return system_error(ENOMEM);
  struct outcome outcome = find_watched(&watch->all->link->server->files, watch, path, &place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = tree_begin(watch, &place);
  place_close(&place);
  step_out();
  return outcome;
}

struct outcome handle_watch(struct request *request) {
  struct slice path = read_str(&request->in);
  bool recursive = read_u8(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct watches *all = watches_of(request->link);
  if (!all) return system_error(ENOMEM);
  struct watch *watch = watch_new(all);
  if (!watch) return refused(LIMIT, "too many watches on this link");
  watch->recursive = recursive;
  struct outcome outcome =
      inotify_open(all) ? watch_begin(watch, path) : refused(LIMIT, "this host has no inotify instance left");
  if (outcome.kind != ANSWER) {
    watch_free(watch);
    close_unused(all);
    return outcome;
  }
  watch->opening = pending_of(request);
  return later();
}

struct outcome handle_watch_read(struct request *request) {
  uint32_t number = read_u32(&request->in);
  uint32_t max = read_u32(&request->in);
  uint32_t wait = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct watch *watch = watch_find(request->link, number);
  if (!watch) return bad_watch();
  if (watch->reader.link) return refused(LIMIT, "another request is already waiting for this watch");
  watch->reader = pending_of(request);
  watch->reader_max = max == 0 ? 1 : max;
  watch->reader_until = request->server->lived_ms + wait;
  return later();
}

struct outcome handle_watch_end(struct request *request) {
  uint32_t number = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct watch *watch = watch_find(request->link, number);
  if (!watch) return bad_watch();
  struct pending reader = watch->reader;
  watch_free(watch);
  close_unused(request->link->watches);
  if (reader.link) {
    struct writer none = {0};
    pending_settle(&reader, &none, bad_watch());
  }
  return answered();
}

/* ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome too_much(void) {
  return refused(LIMIT, "too many directories are watched");
}

static void answer_opening(struct watch *watch) {
  struct pending opening = watch->opening;
  struct writer out = pending_writer(&opening, 4);
  watch->opening.link = NULL;
  watch->begun = true;
  write_u32(&out, watch_number(watch));
  struct watches *all = watch->all;
  bool failed = watch->failed;
  if (failed) watch_free(watch);
  if (failed) close_unused(all);
  pending_settle(&opening, &out, failed ? too_much() : answered());
}

/* Writes as many complete changes from the head of the queue as fit, and removes them from the queue. */
static uint32_t write_changes(struct watch *watch, struct writer *out) {
  uint32_t count = 0;
  size_t size = 0;
  while (size < watch->queued && count < watch->reader_max) {
    size += change_size(watch->queue + size);
    count++;
  }
  uint8_t *room = size > 0 ? writer_room(out, size) : NULL;
  if (room) {
    memcpy(room, watch->queue, size);
    writer_keep(out, size);
  }
  watch->queued -= size;
  if (watch->queued > 0) {
    memmove(watch->queue, watch->queue + size, watch->queued);
  } else {
    free(watch->queue);
    watch->queue = NULL;
    watch->room = 0;
  }
  watch->last = watch->queued > 0 && watch->last >= size ? watch->last - size : 0;
  if (watch->queued > 0 || !watch->lost || count == watch->reader_max) return count;
  watch->lost = false;
  write_u8(out, OVERFLOWED);
  write_u8(out, 1);
  write_str(out, "");
  return count + 1;
}

static void answer_reader(struct watch *watch) {
  struct writer out = pending_writer(&watch->reader, watch->queued + 16);
  if (watch->failed && watch->queued == 0 && !watch->lost) {
    pending_settle(&watch->reader, &out, too_much());
    return;
  }
  write_u8(&out, 0);
  size_t count_at = writer_size(&out);
  write_u32(&out, 0);
  writer_patch_u32(&out, count_at, write_changes(watch, &out));
  bool more = watch->top || watch->failed || watch->lost || watch->queued > 0;
  if (!out.failed) out.chunk->data[FRAME_HEADER] = more;
  pending_settle(&watch->reader, &out, answered());
}

/*
 * Answers the request that opened the watch once the tree was read or the watch has failed, and the waiting read once
 * it has something to report or its waiting time has passed. If an answer cannot be built for lack of memory, the link
 * is closed, and with it all its watches.
 */
static void answer(struct watch *watch) {
  struct link *link = watch->all->link;
  struct server *server = link->server;
  if (watch->opening.link && (watch->to_read == 0 || watch->failed)) answer_opening(watch);
  if (link->dead || !watch->used || !watch->reader.link) return;
  bool something = watch->queued > 0 || watch->lost || watch->failed || !watch->top;
  if (something || watch->reader_until <= server->lived_ms) {
    answer_reader(watch);
  } else {
    server_due(server, watch->reader_until);
  }
}

static void take_events(struct watches *all) {
  _Alignas(struct inotify_event) char events[WATCH_TURN_BYTES];
  ssize_t size = read(all->source.fd, events, sizeof events);
  all->readable = size > 0;
  if (size > 0) tree_take(all, events, (size_t)size);
}

/* After mount changes, schedules a new read of all directories, at most once per WATCH_REMOUNT_MS. */
static void look_into_mounts(struct watches *all) {
  struct server *server = all->link->server;
  if (!all->remounted) return;
  if (server->lived_ms < all->remount_at) {
    server_due(server, all->remount_at);
    return;
  }
  all->remounted = false;
  all->again = true;
  all->remount_at = server->lived_ms + WATCH_REMOUNT_MS;
}

void watches_tick(struct link *link) {
  struct watches *all = link->watches;
  if (!all || all->source.fd < 0) return;
  if (all->readable) take_events(all);
  look_into_mounts(all);
  tree_read_again(all);
  if (tree_read_on(all) || all->readable) server_due(link->server, link->server->lived_ms);
  step_out();
  for (size_t i = 0; i < WATCHES_MAX && !link->dead; i++) {
    if (all->list[i].used) answer(&all->list[i]);
  }
}
