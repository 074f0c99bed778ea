/* An exec's output and exit on disk: a flat file of records, freed at the head when it outgrows its cap. */
#ifndef HOLDFAST_JOURNAL_H
#define HOLDFAST_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "limits.h"

#define JOURNAL_HEADER 24u
#define JOURNAL_STRIDE (JOURNAL_HEADER + JOURNAL_RECORD_MAX)

enum journal_kind { JOURNAL_STDOUT = 1, JOURNAL_STDERR = 2, JOURNAL_EXIT = 3 };

struct journal {
  /* -1 where it is closed; it can still be read. */
  int fd;
  /* A write failed: what comes after is dropped, because a reader must not take what follows a gap for the whole. */
  bool full;
  uint64_t floor;
  uint64_t end;
  uint64_t cap;
  /* Starts of records, a step or more apart: where the floor may move to. */
  uint64_t marks[JOURNAL_MARKS_MAX];
  uint32_t mark_first;
  uint32_t mark_count;
};

/* Makes the file, which must not exist. False with errno. */
bool journal_create(struct journal *journal, int directory, const char *name, uint64_t cap);
/* Its content is gone when this returns. */
void journal_remove(int directory, const char *name);
/* Writes one record; `record` has JOURNAL_HEADER bytes of room in front of the data. */
bool journal_append(struct journal *journal, enum journal_kind kind, uint8_t *record, size_t size);
/*
 * Writes `size` bytes as full records and a last one, all in one where they fit: their data begins every JOURNAL_STRIDE
 * bytes, with room for a header in front of each. False where not all of it could be written.
 */
bool journal_append_run(struct journal *journal, enum journal_kind kind, uint8_t *records, size_t size);
void journal_close(struct journal *journal);

enum journal_read { JOURNAL_READ, JOURNAL_BAD_CURSOR, JOURNAL_FAILED };
/*
 * Writes whole records from `cursor` on as one `bytes` field: at most `max` bytes of them, but always at least one.
 * The cursor lies between floor and end. With JOURNAL_FAILED errno is set.
 */
enum journal_read journal_read(const struct journal *journal, int directory, const char *name, uint64_t cursor,
                               uint32_t max, struct writer *out, uint64_t *next);

#endif
