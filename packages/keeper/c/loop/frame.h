/*
 * Frames and the fields inside them. A reader never reads past its end: the first field that does not fit
 * marks the reader bad, and a bad reader returns zero or empty for all fields. A decoder can therefore read
 * all its fields and check once at the end.
 */
#ifndef HOLDFAST_FRAME_H
#define HOLDFAST_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 12u
#define TYPE_ANSWER 0x8000u
#define TYPE_REFUSAL 0xFFFFu
#define TYPE_EXEC_END 0x0100u
#define TYPE_EXEC_BEGIN 0x0101u

enum refusal_code {
  ACCEPTED = 0,
  MALFORMED = 1,
  TOO_LARGE = 2,
  UNKNOWN_TYPE = 3,
  STALE_GENERATION = 4,
  NOT_GREETED = 5,
  WRONG_IDENTITY = 6,
  NO_SUCH_EXEC = 7,
  EXEC_CONFLICT = 8,
  EXEC_RUNNING = 9,
  LIMIT = 10,
  SYSTEM = 11,
  BAD_HANDLE = 12,
  BELOW_FLOOR = 13,
  BAD_CURSOR = 14,
  NOT_REGULAR = 15,
  RESERVED_PATH = 16,
  NOT_ON_DISK = 17,
};

struct frame {
  uint32_t id;
  uint16_t type;
  const uint8_t *payload;
  size_t payload_size;
};

enum frame_status {
  FRAME_WHOLE,
  FRAME_PARTIAL,
  FRAME_TOO_LARGE,
  FRAME_TOO_SMALL,
};

/*
 * Parses the frame at the start of `data`. `need` is set to the size of the whole frame, or to the number of bytes
 * needed to learn that size.
 */
enum frame_status frame_parse(const uint8_t *data, size_t size, struct frame *frame, size_t *need);

struct slice {
  const uint8_t *data;
  size_t size;
};

struct reader {
  const uint8_t *at;
  const uint8_t *end;
  bool bad;
};

struct reader reader_of(const uint8_t *data, size_t size);
uint8_t read_u8(struct reader *in);
uint16_t read_u16(struct reader *in);
uint32_t read_u32(struct reader *in);
uint64_t read_u64(struct reader *in);
struct slice read_bytes(struct reader *in);
/* Reads like read_bytes, but a NUL in the text marks the reader bad. */
struct slice read_str(struct reader *in);
/* Returns true if every field was present and no byte is left over. */
bool reader_done(const struct reader *in);

/* A piece of outgoing data, usually one frame. */
struct chunk {
  struct chunk *next;
  size_t size;
  size_t sent;
  size_t room;
  uint8_t data[];
};

/* Builds a frame in a growing chunk. If memory runs out, the writer is marked failed and ignores all further writes. */
struct writer {
  struct chunk *chunk;
  bool failed;
};

struct writer writer_begin(uint32_t id, uint16_t type, size_t room);
/* Returns room for `size` more bytes at the end, or NULL. The caller fills the room and then commits it
 * with writer_keep. */
uint8_t *writer_room(struct writer *out, size_t size);
void writer_keep(struct writer *out, size_t size);
size_t writer_size(const struct writer *out);
void write_u8(struct writer *out, uint8_t value);
void write_u32(struct writer *out, uint32_t value);
void write_u64(struct writer *out, uint64_t value);
void write_bytes(struct writer *out, const void *data, size_t size);
void write_str(struct writer *out, const char *text);
/* Overwrites a u32 written earlier, such as a count. */
void writer_patch_u32(struct writer *out, size_t position, uint32_t value);
/* Truncates the frame to an earlier size. */
void writer_cut(struct writer *out, size_t size);
/* Returns the finished frame, which the caller then owns; NULL if the writer failed or the frame exceeds
 * the limit. */
struct chunk *writer_end(struct writer *out);
void writer_drop(struct writer *out);

void store_u32(uint8_t *at, uint32_t value);
void store_u64(uint8_t *at, uint64_t value);
uint32_t load_u32(const uint8_t *at);
uint64_t load_u64(const uint8_t *at);

#endif
