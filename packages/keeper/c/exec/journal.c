#include "exec/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop/server.h"

#define MAGIC 0x314A4648u
#define BLOCK 4096u
#define SPARES_MAX 64u
#define SPARE_NAME_MAX 24

/*
 * Number of spare files. Some removed journals are kept as empty spare files and renamed for reuse, because
 * file systems are slow to create a file in a directory in which many were just removed. No exec id can equal
 * the name of a spare file.
 */
static uint32_t spares;

static void spare_name(char name[SPARE_NAME_MAX], uint32_t index) {
  snprintf(name, SPARE_NAME_MAX, ".spare-%u", index);
}

static bool is_empty(int fd) {
  struct stat stat;
  return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_nlink == 1 && stat.st_size == 0;
}

/*
 * Renames a spare file and opens it. The file was emptied when its journal was removed, and is not truncated again:
 * file systems treat a truncation as the replacement of a file, and flush such a file to disk on close.
 */
static int take_spare(int directory, const char *name) {
  if (spares == 0) return -1;
  char spare[SPARE_NAME_MAX];
  spare_name(spare, --spares);
  if (syscall(SYS_renameat2, directory, spare, directory, name, 1u /* RENAME_NOREPLACE */) < 0) return -1;
  int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd >= 0 && is_empty(fd)) return fd;
  if (fd >= 0) close(fd);
  unlinkat(directory, name, 0);
  return -1;
}

bool journal_create(struct journal *journal, int directory, const char *name, uint64_t cap) {
  *journal = (struct journal){.cap = cap < JOURNAL_CAP_MIN ? JOURNAL_CAP_MIN : cap,
                               .kept_from = JOURNAL_KEEPS_NOTHING};
  journal->fd = take_spare(directory, name);
  if (journal->fd < 0) {
    journal->fd = openat(directory, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
  }
  return journal->fd >= 0;
}

void journal_remove(int directory, const char *name) {
  char spare[SPARE_NAME_MAX];
  spare_name(spare, spares);
  int fd = spares < SPARES_MAX ? openat(directory, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
  bool kept = fd >= 0 && is_empty(fd) && renameat(directory, name, directory, spare) == 0;
  if (fd >= 0) close(fd);
  if (kept) {
    spares++;
  } else {
    unlinkat(directory, name, 0);
  }
}

void journal_close(struct journal *journal) {
  if (journal->fd >= 0) close(journal->fd);
  journal->fd = -1;
}

static uint64_t mark_at(const struct journal *journal, uint32_t index) {
  return journal->marks[(journal->mark_first + index) % JOURNAL_MARKS_MAX];
}

/*
 * Stores the start of the next record as a mark, if the last mark is at least a step (a fixed part of the cap) before
 * it. The oldest part of the journal can be freed up to any mark.
 */
static void mark(struct journal *journal) {
  uint64_t step = journal->cap / JOURNAL_STEPS;
  uint64_t last = journal->mark_count > 0 ? mark_at(journal, journal->mark_count - 1) : journal->floor;
  if (journal->end < last + step || journal->mark_count == JOURNAL_MARKS_MAX) return;
  journal->marks[(journal->mark_first + journal->mark_count) % JOURNAL_MARKS_MAX] = journal->end;
  journal->mark_count++;
}

/*
 * Frees the oldest part of the file, so that the rest fits the cap if possible. The floor, where the readable part
 * begins, moves to a mark, but never beyond `kept_from`, from which on nothing may be freed. If the file system cannot
 * punch holes, nothing is freed, and the journal is treated as full at twice its cap.
 */
static void shorten(struct journal *journal) {
  uint64_t floor = journal->floor;
  uint32_t used = 0;
  while (used < journal->mark_count && journal->end - floor > journal->cap &&
         mark_at(journal, used) <= journal->kept_from) {
    floor = mark_at(journal, used++);
  }
  if (floor == journal->floor) return;
  uint64_t from = journal->floor / BLOCK * BLOCK;
  if (fallocate(journal->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(floor - from)) < 0) {
    if (journal->end - journal->floor > 2 * journal->cap) journal->full = true;
    return;
  }
  journal->floor = floor;
  journal->mark_first = (journal->mark_first + used) % JOURNAL_MARKS_MAX;
  journal->mark_count -= used;
}

static bool write_whole(int fd, const uint8_t *data, size_t size, uint64_t offset) {
  while (size > 0) {
    ssize_t written = pwrite(fd, data, size, (off_t)offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= (size_t)written;
    offset += (uint64_t)written;
  }
  return true;
}

static void store_header(uint8_t *record, enum journal_kind kind, size_t size) {
  store_u32(record, MAGIC);
  store_u32(record + 4, kind);
  store_u32(record + 8, (uint32_t)size);
  store_u32(record + 12, 0);
  store_u64(record + 16, realtime_us());
}

static bool write_at_end(struct journal *journal, const uint8_t *records, size_t size) {
  if (write_whole(journal->fd, records, size, journal->end)) return true;
  /* Cuts off an incomplete record at the end, which readers would treat as damage. */
  if (ftruncate(journal->fd, (off_t)journal->end) < 0) journal->full = true;
  return false;
}

static void count_in(struct journal *journal, size_t size) {
  mark(journal);
  journal->end += JOURNAL_HEADER + size;
  if (journal->end - journal->floor > journal->cap) shorten(journal);
}

bool journal_append(struct journal *journal, enum journal_kind kind, uint8_t *record, size_t size) {
  if (journal->fd < 0 || (journal->full && kind != JOURNAL_EXIT)) return false;
  store_header(record, kind, size);
  if (!write_at_end(journal, record, JOURNAL_HEADER + size)) {
    journal->full = true;
    return false;
  }
  count_in(journal, size);
  return true;
}

/* Writes the records one by one, and stops at the first that cannot be written. */
static bool append_each(struct journal *journal, enum journal_kind kind, uint8_t *records, size_t size) {
  for (; size > JOURNAL_RECORD_MAX; size -= JOURNAL_RECORD_MAX, records += JOURNAL_STRIDE) {
    if (!journal_append(journal, kind, records, JOURNAL_RECORD_MAX)) return false;
  }
  return journal_append(journal, kind, records, size);
}

bool journal_append_run(struct journal *journal, enum journal_kind kind, uint8_t *records, size_t size) {
  if (size <= JOURNAL_RECORD_MAX || journal->fd < 0 || journal->full) {
    return append_each(journal, kind, records, size);
  }
  size_t last = (size - 1) / JOURNAL_RECORD_MAX;
  size_t rest = size - last * JOURNAL_RECORD_MAX;
  for (size_t i = 0; i <= last; i++) {
    store_header(records + i * JOURNAL_STRIDE, kind, i < last ? JOURNAL_RECORD_MAX : rest);
  }
  if (!write_at_end(journal, records, last * JOURNAL_STRIDE + JOURNAL_HEADER + rest)) {
    return append_each(journal, kind, records, size);
  }
  for (size_t i = 0; i < last; i++) count_in(journal, JOURNAL_RECORD_MAX);
  count_in(journal, rest);
  return true;
}

/* Returns the size of a record including its header, or 0 if the header is invalid. */
static uint64_t record_size(const uint8_t *header) {
  uint32_t kind = load_u32(header + 4);
  uint32_t size = load_u32(header + 8);
  bool sound = load_u32(header) == MAGIC && kind >= JOURNAL_STDOUT && kind <= JOURNAL_EXIT &&
               size <= JOURNAL_RECORD_MAX && load_u32(header + 12) == 0;
  return sound ? JOURNAL_HEADER + (uint64_t)size : 0;
}

static ssize_t read_whole(int fd, uint8_t *data, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    ssize_t got = pread(fd, data + done, size - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

static enum journal_read read_records(int fd, uint64_t cursor, uint64_t size, struct writer *out, size_t *kept) {
  uint8_t first[JOURNAL_HEADER];
  ssize_t got = read_whole(fd, first, sizeof first, cursor);
  if (got < 0) return JOURNAL_FAILED;
  uint64_t needed = (size_t)got == sizeof first ? record_size(first) : 0;
  if (needed == 0) return JOURNAL_BAD_CURSOR;
  if (size < needed) size = needed;
  uint8_t *room = writer_room(out, 4 + size);
  if (!room) {
    errno = ENOMEM;
    return JOURNAL_FAILED;
  }
  got = read_whole(fd, room + 4, size, cursor);
  if (got < 0) return JOURNAL_FAILED;
  size_t at = 0;
  while ((size_t)got - at >= JOURNAL_HEADER) {
    uint64_t record = record_size(room + 4 + at);
    if (record == 0 || record > (size_t)got - at) break;
    at += record;
  }
  if (at == 0) return JOURNAL_BAD_CURSOR;
  store_u32(room, (uint32_t)at);
  *kept = at;
  writer_keep(out, 4 + at);
  return JOURNAL_READ;
}

/*
 * Opens a closed journal for reading. Only a regular file is accepted, because a command running as root may have
 * replaced it.
 */
static int reopen(int directory, const char *name) {
  int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat stat;
  if (fd < 0) return -1;
  if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) return fd;
  close(fd);
  errno = EIO;
  return -1;
}

enum journal_read journal_read(const struct journal *journal, int directory, const char *name, uint64_t cursor,
                               uint32_t max, struct writer *out, uint64_t *next) {
  if (max > FRAME_DATA_MAX) max = FRAME_DATA_MAX;
  uint64_t size = journal->end - cursor;
  if (size > max) size = max;
  int fd = journal->fd >= 0 ? journal->fd : reopen(directory, name);
  if (fd < 0) return JOURNAL_FAILED;
  size_t kept = 0;
  enum journal_read result = read_records(fd, cursor, size, out, &kept);
  int error = errno;
  if (fd != journal->fd) close(fd);
  errno = error;
  *next = cursor + kept;
  return result;
}
