#include "loop/frame.h"

#include <stdlib.h>
#include <string.h>

#include "loop/limits.h"

void store_u32(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

void store_u64(uint8_t *at, uint64_t value) {
  for (int i = 0; i < 8; i++) at[i] = (uint8_t)(value >> (8 * i));
}

uint32_t load_u32(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t load_u64(const uint8_t *at) {
  return (uint64_t)load_u32(at) | (uint64_t)load_u32(at + 4) << 32;
}

enum frame_status frame_parse(const uint8_t *data, size_t size, struct frame *frame, size_t *need) {
  *frame = (struct frame){0};
  *need = FRAME_HEADER;
  if (size < 4) return FRAME_PARTIAL;
  uint32_t body = load_u32(data);
  if (size >= 8) frame->id = load_u32(data + 4);
  if (body < 8) return FRAME_TOO_SMALL;
  if (body > FRAME_SIZE_MAX) return FRAME_TOO_LARGE;
  *need = 4 + (size_t)body;
  if (size < *need) return FRAME_PARTIAL;
  frame->type = (uint16_t)(data[8] | data[9] << 8);
  frame->payload = data + FRAME_HEADER;
  frame->payload_size = *need - FRAME_HEADER;
  return FRAME_WHOLE;
}

struct reader reader_of(const uint8_t *data, size_t size) {
  return (struct reader){.at = data, .end = data + size};
}

static const uint8_t *take(struct reader *in, size_t size) {
  if (in->bad || (size_t)(in->end - in->at) < size) {
    in->bad = true;
    return NULL;
  }
  const uint8_t *data = in->at;
  in->at += size;
  return data;
}

uint8_t read_u8(struct reader *in) {
  const uint8_t *data = take(in, 1);
  return data ? *data : 0;
}

uint16_t read_u16(struct reader *in) {
  const uint8_t *data = take(in, 2);
  return data ? (uint16_t)(data[0] | data[1] << 8) : 0;
}

uint32_t read_u32(struct reader *in) {
  const uint8_t *data = take(in, 4);
  return data ? load_u32(data) : 0;
}

uint64_t read_u64(struct reader *in) {
  const uint8_t *data = take(in, 8);
  return data ? load_u64(data) : 0;
}

struct slice read_bytes(struct reader *in) {
  size_t size = read_u32(in);
  const uint8_t *data = take(in, size);
  return data ? (struct slice){data, size} : (struct slice){(const uint8_t *)"", 0};
}

struct slice read_str(struct reader *in) {
  struct slice text = read_bytes(in);
  if (memchr(text.data, 0, text.size)) {
    in->bad = true;
    return (struct slice){(const uint8_t *)"", 0};
  }
  return text;
}

bool reader_done(const struct reader *in) {
  return !in->bad && in->at == in->end;
}

struct writer writer_begin(uint32_t id, uint16_t type, size_t room) {
  struct writer out = {0};
  room += FRAME_HEADER;
  out.chunk = malloc(sizeof(struct chunk) + room);
  if (!out.chunk) {
    out.failed = true;
    return out;
  }
  out.chunk->next = NULL;
  out.chunk->sent = 0;
  out.chunk->room = room;
  out.chunk->size = FRAME_HEADER;
  store_u32(out.chunk->data, 0);
  store_u32(out.chunk->data + 4, id);
  store_u32(out.chunk->data + 8, type);
  return out;
}

uint8_t *writer_room(struct writer *out, size_t size) {
  if (out->failed) return NULL;
  struct chunk *chunk = out->chunk;
  if (chunk->room - chunk->size < size) {
    size_t room = chunk->size + size;
    if (room < 2 * chunk->room) room = 2 * chunk->room;
    chunk = realloc(chunk, sizeof(struct chunk) + room);
    if (!chunk) {
      out->failed = true;
      return NULL;
    }
    chunk->room = room;
    out->chunk = chunk;
  }
  return chunk->data + chunk->size;
}

void writer_keep(struct writer *out, size_t size) {
  if (!out->failed) out->chunk->size += size;
}

size_t writer_size(const struct writer *out) {
  return out->chunk ? out->chunk->size : 0;
}

void write_u8(struct writer *out, uint8_t value) {
  uint8_t *at = writer_room(out, 1);
  if (!at) return;
  *at = value;
  writer_keep(out, 1);
}

void write_u32(struct writer *out, uint32_t value) {
  uint8_t *at = writer_room(out, 4);
  if (!at) return;
  store_u32(at, value);
  writer_keep(out, 4);
}

void write_u64(struct writer *out, uint64_t value) {
  uint8_t *at = writer_room(out, 8);
  if (!at) return;
  store_u64(at, value);
  writer_keep(out, 8);
}

void write_bytes(struct writer *out, const void *data, size_t size) {
  uint8_t *at = writer_room(out, 4 + size);
  if (!at) return;
  store_u32(at, (uint32_t)size);
  if (size > 0) memcpy(at + 4, data, size);
  writer_keep(out, 4 + size);
}

void write_str(struct writer *out, const char *text) {
  write_bytes(out, text, strlen(text));
}

void writer_patch_u32(struct writer *out, size_t position, uint32_t value) {
  if (!out->failed && position + 4 <= out->chunk->size) store_u32(out->chunk->data + position, value);
}

void writer_cut(struct writer *out, size_t size) {
  if (!out->failed && size >= FRAME_HEADER && size < out->chunk->size) out->chunk->size = size;
}

struct chunk *writer_end(struct writer *out) {
  struct chunk *chunk = out->chunk;
  out->chunk = NULL;
  if (!chunk || out->failed || chunk->size - 4 > FRAME_SIZE_MAX) {
    free(chunk);
    return NULL;
  }
  store_u32(chunk->data, (uint32_t)(chunk->size - 4));
  return chunk;
}

void writer_drop(struct writer *out) {
  free(out->chunk);
  out->chunk = NULL;
  out->failed = true;
}
