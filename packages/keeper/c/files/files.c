#include "files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "files/file_ops.h"
#include "files/path.h"
#include "files/watch.h"

#define NOT_GIVEN 0xFFFFFFFFu

/* A file that is being written under a temporary name, in the directory of the file that it will replace. */
struct draft {
  struct place place;
  char temporary[40];
  struct owner owner;
  uint32_t mode;
  uint64_t size;
};

struct listing {
  size_t at;
  size_t size;
  _Alignas(struct dirent64) uint8_t buffer[DIR_BUFFER];
};

struct handle {
  enum { UNUSED, READING, WRITING, LISTING } kind;
  /*
   * Incremented with each use of this slot and part of the handle's number, so that the number of an old handle never
   * refers to a newer file.
   */
  uint32_t serial;
  int fd;
  struct draft *draft;
  struct listing *listing;
};

static void reserve(struct file_rules *rules, const char *path) {
  struct statx stat;
  if (statx(AT_FDCWD, path, 0, STATX_INO, &stat) < 0) return;
  rules->reserved[rules->reserved_count].dev = makedev(stat.stx_dev_major, stat.stx_dev_minor);
  rules->reserved[rules->reserved_count].ino = stat.stx_ino;
  rules->reserved_count++;
}

void file_rules_init(struct file_rules *rules, const struct file_policy *policy) {
  *rules = (struct file_rules){
      .uid = policy->uid, .gid = policy->gid, .reserve = policy->reserve, .one_mount = policy->one_mount,
      .control = policy->control};
  struct statx top;
  if (statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &top) == 0 && top.stx_mask & STATX_MNT_ID) rules->root_mount = top.stx_mnt_id;
  if (!policy->reserve) return;
  reserve(rules, "/.holdfast");
  if (!policy->control) return;
  reserve(rules, policy->control);
  char journals[PATH_MAX];
  snprintf(journals, sizeof journals, "%s/journals", policy->control);
  reserve(rules, journals);
  struct statx root;
  struct statx control;
  if (statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &root) == 0 &&
      statx(AT_FDCWD, policy->control, 0, STATX_MNT_ID, &control) == 0 &&
      (root.stx_mask & control.stx_mask & STATX_MNT_ID)) {
    /*
     * If the control directory is the root of its own mount, requests for any path on that mount are refused. Outside a
     * sandbox the directory may be part of a larger mount, whose other paths are allowed.
     */
    rules->own_mount = root.stx_mnt_id != control.stx_mnt_id && (control.stx_attributes & STATX_ATTR_MOUNT_ROOT);
    rules->mount = control.stx_mnt_id;
  }
}

/*
 * Updates mount and device numbers, which change when the sandbox is restored from a checkpoint. After that, the old
 * numbers may denote other mounts or devices.
 */
static void file_rules_renew(struct file_rules *rules) {
  struct file_policy policy = {.uid = rules->uid, .gid = rules->gid, .reserve = rules->reserve,
                               .one_mount = rules->one_mount, .control = rules->control};
  file_rules_init(rules, &policy);
}

uint32_t given_or(uint32_t value, uint32_t otherwise) {
  return value == NOT_GIVEN ? otherwise : value;
}

struct owner read_owner(struct request *request) {
  uint32_t uid = read_u32(&request->in);
  return (struct owner){uid, read_u32(&request->in)};
}

struct owner owner_or_default(const struct request *request, struct owner given) {
  const struct file_rules *rules = &request->server->files;
  return (struct owner){given_or(given.uid, rules->uid), given_or(given.gid, rules->gid)};
}

/* ── Stat ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint8_t kind_of(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return 1;
    case S_IFDIR:
      return 2;
    case S_IFLNK:
      return 3;
    case S_IFIFO:
      return 4;
    case S_IFSOCK:
      return 5;
    default:
      return 6;
  }
}

/* Writes a stat. The link target is read from the entry `name` in `dir`, or from `dir` itself if the name
 * is empty. */
static void write_stat(struct writer *out, const struct statx *stat, int dir, const char *name) {
  int64_t mtime = stat->stx_mtime.tv_sec * 1000 + stat->stx_mtime.tv_nsec / 1000000;
  write_u8(out, kind_of(stat->stx_mode));
  write_u64(out, stat->stx_size);
  write_u32(out, stat->stx_mode & 07777);
  write_u32(out, stat->stx_uid);
  write_u32(out, stat->stx_gid);
  write_u64(out, mtime < 0 ? 0 : (uint64_t)mtime);
  write_u64(out, makedev(stat->stx_dev_major, stat->stx_dev_minor));
  write_u64(out, stat->stx_ino);
  char target[PATH_MAX];
  ssize_t size = S_ISLNK(stat->stx_mode) ? readlinkat(dir, name, target, sizeof target) : 0;
  write_bytes(out, target, size > 0 ? (size_t)size : 0);
}

static struct outcome handle_stat(struct request *request) {
  struct slice path = read_str(&request->in);
  bool follow = read_u8(&request->in);
  struct place place;
  struct outcome outcome = place_of(request, path, &place);
  if (outcome.kind != ANSWER) return outcome;
  int fd;
  struct statx stat;
  outcome = place_open(&request->server->files, &place, O_PATH | (follow ? 0 : O_NOFOLLOW), &fd, &stat);
  place_close(&place);
  if (outcome.kind != ANSWER) return outcome;
  write_stat(&request->out, &stat, fd, "");
  close(fd);
  return outcome;
}

/* ── Handles ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct handle *handle_new(struct link *link, uint32_t *number) {
  if (!link->handles) {
    link->handles = calloc(HANDLES_MAX, sizeof *link->handles);
    if (!link->handles) return NULL;
  }
  for (uint32_t i = 0; i < HANDLES_MAX; i++) {
    struct handle *handle = &link->handles[i];
    if (handle->kind != UNUSED) continue;
    handle->serial = (handle->serial + 1) & 0x3FFFFFFu;
    *number = handle->serial * HANDLES_MAX + i;
    return handle;
  }
  return NULL;
}

static struct handle *handle_find(struct link *link, uint32_t number, int kind) {
  if (!link->handles) return NULL;
  struct handle *handle = &link->handles[number % HANDLES_MAX];
  bool right = handle->kind == (unsigned)kind && handle->serial == number / HANDLES_MAX;
  return right ? handle : NULL;
}

static struct outcome bad_handle(void) {
  return refused(BAD_HANDLE, "no such handle on this link");
}

static struct outcome too_many_handles(void) {
  return refused(LIMIT, "too many open handles on this link");
}

static void draft_drop(struct draft *draft, bool committed) {
  if (!draft) return;
  if (!committed) unlinkat(draft->place.dir, draft->temporary, 0);
  place_close(&draft->place);
  free(draft);
}

static void handle_free(struct handle *handle, bool committed) {
  draft_drop(handle->draft, committed);
  free(handle->listing);
  close(handle->fd);
  handle->draft = NULL;
  handle->listing = NULL;
  handle->kind = UNUSED;
}

static void handles_free(struct link *link) {
  for (uint32_t i = 0; link->handles && i < HANDLES_MAX; i++) {
    if (link->handles[i].kind != UNUSED) handle_free(&link->handles[i], false);
  }
  free(link->handles);
  link->handles = NULL;
}

static struct outcome handle_close(struct request *request) {
  uint32_t number = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct handle *handle = handle_find(request->link, number, READING);
  if (!handle) handle = handle_find(request->link, number, WRITING);
  if (!handle) handle = handle_find(request->link, number, LISTING);
  if (!handle) return bad_handle();
  handle_free(handle, false);
  return answered();
}

/* ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Checks that the file is regular before opening it: opening a pipe or device can have side effects. */
static struct outcome open_regular(const struct file_rules *rules, const struct place *place, int *fd,
                                   struct statx *stat) {
  struct outcome outcome = place_open(rules, place, O_PATH, fd, stat);
  if (outcome.kind != ANSWER) return outcome;
  close(*fd);
  if (!S_ISREG(stat->stx_mode)) return refused(NOT_REGULAR, "not a regular file");
  outcome = place_open(rules, place, O_RDONLY, fd, stat);
  if (outcome.kind != ANSWER || S_ISREG(stat->stx_mode)) return outcome;
  close(*fd);
  return refused(NOT_REGULAR, "not a regular file");
}

/* Opens the path as a file or directory, and assigns a handle to it. The caller sets the handle's kind. */
static struct outcome open_handle(struct request *request, bool directory, struct handle **handle, uint32_t *number,
                                  struct statx *stat) {
  const struct file_rules *rules = &request->server->files;
  struct place place;
  struct outcome outcome = place_of(request, read_str(&request->in), &place);
  if (outcome.kind != ANSWER) return outcome;
  *handle = handle_new(request->link, number);
  if (!*handle) {
    outcome = too_many_handles();
  } else if (directory) {
    outcome = place_open(rules, &place, O_RDONLY | O_DIRECTORY, &(*handle)->fd, stat);
  } else {
    outcome = open_regular(rules, &place, &(*handle)->fd, stat);
  }
  place_close(&place);
  return outcome;
}

static struct outcome handle_open(struct request *request) {
  struct handle *handle;
  uint32_t number;
  struct statx stat;
  struct outcome outcome = open_handle(request, false, &handle, &number, &stat);
  if (outcome.kind != ANSWER) return outcome;
  handle->kind = READING;
  write_u32(&request->out, number);
  write_stat(&request->out, &stat, handle->fd, "");
  return outcome;
}

static struct outcome handle_read(struct request *request) {
  uint32_t number = read_u32(&request->in);
  uint64_t offset = read_u64(&request->in);
  uint32_t length = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  if (length > FRAME_DATA_MAX) return refused(TOO_LARGE, "read larger than the limit");
  struct handle *handle = handle_find(request->link, number, READING);
  if (!handle) return bad_handle();
  if (offset > INT64_MAX) return system_error(EINVAL);
  uint8_t *room = writer_room(&request->out, 4 + (size_t)length);
  if (!room) return system_error(ENOMEM);
  size_t size = 0;
  while (size < length) {
    ssize_t got = pread(handle->fd, room + 4 + size, length - size, (off_t)(offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && size == 0) return system_error(errno);
    if (got <= 0) break;
    size += (size_t)got;
  }
  store_u32(room, (uint32_t)size);
  writer_keep(&request->out, 4 + size);
  return answered();
}

/* ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void name_temporary(char *name, size_t size) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) < 0) random = realtime_us();
  snprintf(name, size, ".holdfast-%016llx", (unsigned long long)random);
}

/* Copies mode and owner of the file that will be replaced, except where the request sets them. */
static struct outcome draft_inherit(struct request *request, struct draft *draft, struct owner given) {
  const struct file_rules *rules = &request->server->files;
  struct statx old;
  int fd;
  struct outcome outcome = place_open(rules, &draft->place, O_PATH | O_NOFOLLOW, &fd, &old);
  if (outcome.kind == REFUSE && outcome.error == ENOENT) {
    draft->mode = given_or(draft->mode, 0644);
    draft->owner = owner_or_default(request, given);
    return answered();
  }
  if (outcome.kind != ANSWER) return outcome;
  close(fd);
  if (S_ISDIR(old.stx_mode)) return system_error(EISDIR);
  if (!S_ISREG(old.stx_mode)) return refused(NOT_REGULAR, "not a regular file");
  draft->mode = given_or(draft->mode, old.stx_mode & 07777);
  draft->owner = (struct owner){given_or(given.uid, old.stx_uid), given_or(given.gid, old.stx_gid)};
  return answered();
}

static struct outcome draft_begin(struct request *request, struct slice path, bool parents, struct owner given,
                                  struct draft *draft, int *fd) {
  const struct file_rules *rules = &request->server->files;
  struct owner owner = owner_or_default(request, given);
  struct outcome outcome = place_find(rules, path, parents ? &owner : NULL, &draft->place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = place_follow(rules, &draft->place);
  if (outcome.kind != ANSWER) return outcome;
  outcome = draft_inherit(request, draft, given);
  if (outcome.kind == ANSWER) {
    name_temporary(draft->temporary, sizeof draft->temporary);
    *fd = openat(draft->place.dir, draft->temporary, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0) outcome = system_error(errno);
  }
  if (outcome.kind != ANSWER) place_close(&draft->place);
  return outcome;
}

static struct outcome handle_create(struct request *request) {
  struct slice path = read_str(&request->in);
  uint32_t mode = read_u32(&request->in);
  bool parents = read_u8(&request->in);
  struct owner given = read_owner(request);
  if (!reader_done(&request->in)) return malformed();
  uint32_t number;
  struct handle *handle = handle_new(request->link, &number);
  if (!handle) return too_many_handles();
  struct draft *draft = malloc(sizeof *draft);
  if (!draft) return system_error(ENOMEM);
  draft->mode = mode;
  draft->size = 0;
  struct outcome outcome = draft_begin(request, path, parents, given, draft, &handle->fd);
  if (outcome.kind != ANSWER) {
    free(draft);
    return outcome;
  }
  handle->kind = WRITING;
  handle->draft = draft;
  write_u32(&request->out, number);
  return answered();
}

static struct outcome handle_write(struct request *request) {
  uint32_t number = read_u32(&request->in);
  struct slice data = read_bytes(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct handle *handle = handle_find(request->link, number, WRITING);
  if (!handle) return bad_handle();
  size_t written = 0;
  while (written < data.size) {
    ssize_t size = write(handle->fd, data.data + written, data.size - written);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return system_error(size < 0 ? errno : EIO);
    written += (size_t)size;
    handle->draft->size += (size_t)size;
  }
  write_u64(&request->out, handle->draft->size);
  return answered();
}

static struct outcome handle_commit(struct request *request) {
  uint32_t number = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct handle *handle = handle_find(request->link, number, WRITING);
  if (!handle) return bad_handle();
  struct draft *draft = handle->draft;
  if (fchown(handle->fd, draft->owner.uid, draft->owner.gid) < 0) return system_error(errno);
  if (fchmod(handle->fd, draft->mode & 07777) < 0) return system_error(errno);
  struct statx stat;
  if (statx(handle->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stat) < 0) return system_error(errno);
  if (renameat(draft->place.dir, draft->temporary, draft->place.dir, draft->place.name) < 0) {
    return system_error(errno);
  }
  write_stat(&request->out, &stat, handle->fd, "");
  handle_free(handle, true);
  return answered();
}

/* ── Directories ───────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome handle_dir_open(struct request *request) {
  struct handle *handle;
  uint32_t number;
  struct statx stat;
  struct outcome outcome = open_handle(request, true, &handle, &number, &stat);
  if (outcome.kind != ANSWER) return outcome;
  handle->listing = malloc(sizeof *handle->listing);
  if (!handle->listing) {
    close(handle->fd);
    return system_error(ENOMEM);
  }
  handle->listing->at = handle->listing->size = 0;
  handle->kind = LISTING;
  write_u32(&request->out, number);
  return outcome;
}

/* Returns the next entry. Returns NULL at the end, and also on a failure, which sets errno. */
static struct dirent64 *next_entry(struct handle *handle) {
  struct listing *listing = handle->listing;
  if (listing->at >= listing->size) {
    errno = 0;
    long size = syscall(SYS_getdents64, handle->fd, listing->buffer, sizeof listing->buffer);
    if (size <= 0) return NULL;
    listing->at = 0;
    listing->size = (size_t)size;
  }
  struct dirent64 *entry = (struct dirent64 *)(listing->buffer + listing->at);
  listing->at += entry->d_reclen;
  return entry;
}

static bool write_entry(struct writer *out, int dir, const char *name) {
  if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
  struct statx stat;
  if (statx(dir, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &stat) < 0) return false;
  write_str(out, name);
  write_stat(out, &stat, dir, name);
  return true;
}

static struct outcome handle_dir_read(struct request *request) {
  uint32_t number = read_u32(&request->in);
  uint32_t max = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct handle *handle = handle_find(request->link, number, LISTING);
  if (!handle) return bad_handle();
  if (max > DIR_ENTRIES_MAX) max = DIR_ENTRIES_MAX;
  size_t count_at = writer_size(&request->out);
  uint32_t count = 0;
  bool done = false;
  write_u32(&request->out, 0);
  while (count < max && writer_size(&request->out) < ANSWER_SOFT_MAX) {
    struct dirent64 *entry = next_entry(handle);
    if (!entry && errno != 0) return system_error(errno);
    done = !entry;
    if (done) break;
    if (write_entry(&request->out, handle->fd, entry->d_name)) count++;
  }
  writer_patch_u32(&request->out, count_at, count);
  write_u8(&request->out, done);
  return answered();
}

static const struct route file_routes[] = {
    {20, handle_stat},    {21, handle_open},     {22, handle_read},     {23, handle_create}, {24, handle_write},
    {25, handle_commit},  {26, handle_close},    {27, handle_dir_open}, {28, handle_dir_read}, {29, handle_mkdir},
    {30, handle_remove},  {31, handle_rename},   {32, handle_chmod},    {33, handle_chown},  {34, handle_symlink},
    {35, handle_hardlink}, {36, handle_utimes},  {37, handle_watch},    {38, handle_watch_read}, {39, handle_watch_end},
    {0, NULL},
};

static void link_gone(struct link *link) {
  handles_free(link);
  watches_link_gone(link);
}

const struct file_service file_service = {
    .routes = file_routes,
    .renew = file_rules_renew,
    .tick = watches_tick,
    .link_gone = link_gone,
    .free_link = watches_free,
};
