/* An exec's output and exit on disk: a flat file of records. When the file exceeds its cap, its oldest
 * records are freed. */
#ifndef HOLDFAST_JOURNAL_H
#define HOLDFAST_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loop/frame.h"
#include "loop/limits.h"

#define JOURNAL_HEADER 24u
#define JOURNAL_STRIDE (JOURNAL_HEADER + JOURNAL_RECORD_MAX)

#define JOURNAL_KEEPS_NOTHING UINT64_MAX

enum journal_kind { JOURNAL_STDOUT = 1, JOURNAL_STDERR = 2, JOURNAL_EXIT = 3 };

struct journal {
  /* File descriptor; -1 if closed. A closed journal can still be read. */
  int fd;
  /*
   * Whether the journal accepts no further output, because a write failed or space could not be freed. All later output
   * is dropped, because a reader must not mistake output with a gap for complete output.
   */
  bool full;
  uint64_t floor;
  uint64_t end;
  uint64_t cap;
  /*
   * The position from which on nothing is freed, even if the journal then exceeds its cap; JOURNAL_KEEPS_NOTHING if
   * everything may be freed.
   */
  uint64_t kept_from;
  /*
   * The marks: positions to which the floor, where the readable part begins, may move. Each is the start of a record,
   * at least one step after the previous mark.
   */
  uint64_t marks[JOURNAL_MARKS_MAX];
  uint32_t mark_first;
  uint32_t mark_count;
};

/* Creates the file, which must not exist. Returns false with errno. */
bool journal_create(struct journal *journal, int directory, const char *name, uint64_t cap);
/* Removes a journal. When this function returns, the journal's content is deleted. */
void journal_remove(int directory, const char *name);
/* Writes one record. `record` has JOURNAL_HEADER bytes of room before its data. */
bool journal_append(struct journal *journal, enum journal_kind kind, uint8_t *record, size_t size);
/*
 * Writes `size` bytes as records: all but the last have the maximum size. Uses a single write if possible. In memory
 * the data lies in pieces, one every JOURNAL_STRIDE bytes, with room for a header before each piece. Returns false if
 * not everything was written.
 */
bool journal_append_run(struct journal *journal, enum journal_kind kind, uint8_t *records, size_t size);
void journal_close(struct journal *journal);

enum journal_read { JOURNAL_READ, JOURNAL_BAD_CURSOR, JOURNAL_FAILED };
/*
 * Writes complete records, beginning at `cursor`, as one `bytes` field: at most `max` bytes, but always at least one
 * record. The caller has checked that the cursor lies between floor and end. Returns JOURNAL_READ on success,
 * JOURNAL_BAD_CURSOR if no complete record begins at the cursor, and JOURNAL_FAILED with errno if memory or reading
 * failed.
 */
enum journal_read journal_read(const struct journal *journal, int directory, const char *name, uint64_t cursor,
                               uint32_t max, struct writer *out, uint64_t *next);

#endif
