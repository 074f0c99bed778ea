#include "kept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kept_state { KEPT_RUNNING = 1, KEPT_WAITING = 2, KEPT_DONE = 3, KEPT_STOPPED = 4, KEPT_GIVEN_UP = 5 };

struct kept {
  struct kept *next;
  enum kept_state state;
  struct keep_policy policy;
  uint32_t restarts;
  /* How often the next run could not begin. */
  uint32_t tries;
  /* Lived time at which the last run began, and at which the next is due. */
  uint64_t began_at;
  uint64_t next_at;
  /* The last run. It is known for as long as the row is. */
  struct exec *exec;
  /* Without its id. The strings are the row's own while it is not over. */
  struct exec_order order;
  uint8_t *strings;
  size_t strings_size;
};

static struct {
  struct kept *rows;
  /* Of those that are not over. */
  uint32_t count;
  size_t strings_size;
} table;

/* ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_over(const struct kept *row) {
  return row->state != KEPT_RUNNING && row->state != KEPT_WAITING;
}

/*
 * What follows a run that ended, while nobody has stopped the row: KEPT_WAITING, KEPT_DONE or KEPT_GIVEN_UP.
 * A run that lasted begins the count of restarts anew. One that is cancelled all the same, because the kernel had no
 * memory to watch it with, has failed.
 */
static enum kept_state decide(const struct keep_policy *policy, const struct exec *run, uint64_t lived_ms,
                              uint32_t *restarts) {
  bool succeeded = run->state == EXEC_EXITED && run->exit_code == 0;
  if (succeeded && !policy->always) return KEPT_DONE;
  if (lived_ms >= KEPT_ANEW_MS) *restarts = 0;
  return *restarts >= policy->max ? KEPT_GIVEN_UP : KEPT_WAITING;
}

static uint64_t backoff(const struct kept *row) {
  uint64_t wait = row->policy.backoff_ms;
  for (uint32_t i = row->restarts + row->tries; i > 0 && wait < KEPT_BACKOFF_MAX_MS; i--) wait *= 2;
  return wait < KEPT_BACKOFF_MAX_MS ? wait : KEPT_BACKOFF_MAX_MS;
}

/* Where the number at the end of an id begins, behind a hyphen and without needless zeros; 0 where there is none. */
static size_t number_at(struct slice id) {
  size_t at = id.size;
  while (at > 0 && id.data[at - 1] >= '0' && id.data[at - 1] <= '9') at--;
  bool sound = at > 0 && id.data[at - 1] == '-' && at < id.size && (id.data[at] != '0' || at + 1 == id.size);
  return sound ? at : 0;
}

static struct slice slice_of(const char *text) {
  return (struct slice){(const uint8_t *)text, strlen(text)};
}

/* Counts the number at its end up. False where the id would grow too long. */
static bool next_id(const char *id, char next[EXEC_ID_MAX + 1]) {
  size_t size = strlen(id), start = number_at(slice_of(id)), at = size;
  memcpy(next, id, size + 1);
  while (at > start && next[at - 1] == '9') next[--at] = '0';
  if (at > start) {
    next[at - 1]++;
    return true;
  }
  if (size == EXEC_ID_MAX) return false;
  memmove(next + start + 1, next + start, size - start + 1);
  next[start] = '1';
  return true;
}

static bool counts_alike(struct slice one, struct slice other) {
  size_t size = number_at(one);
  return size == number_at(other) && memcmp(one.data, other.data, size) == 0;
}

/* ── Rows ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct kept *row_of(const struct exec *exec) {
  struct kept *row = exec->kept ? table.rows : NULL;
  while (row && row->exec != exec) row = row->next;
  return row;
}

static struct slice take(struct kept *row, struct slice from) {
  uint8_t *to = row->strings + row->strings_size;
  memcpy(to, from.data, from.size);
  row->strings_size += from.size;
  return (struct slice){to, from.size};
}

static struct kept *row_new(const struct exec_order *order, const struct keep_policy *policy, size_t size) {
  struct kept *row = calloc(1, sizeof *row);
  uint8_t *strings = malloc(size);
  if (!row || !strings) {
    free(row);
    free(strings);
    return NULL;
  }
  row->policy = *policy;
  row->strings = strings;
  row->order = *order;
  row->order.id = (struct slice){0};
  row->order.argv = take(row, order->argv);
  row->order.env = take(row, order->env);
  row->order.cwd = take(row, order->cwd);
  row->order.user = take(row, order->user);
  row->order.digest = take(row, order->digest);
  return row;
}

static void row_free(struct kept *row) {
  free(row->strings);
  free(row);
}

static void row_over(struct kept *row, enum kept_state state) {
  row->state = state;
  table.count--;
  table.strings_size -= row->strings_size;
  free(row->strings);
  row->strings = NULL;
}

static void row_runs(const struct server *server, struct kept *row, struct exec *exec) {
  exec->kept = true;
  row->exec = exec;
  row->state = KEPT_RUNNING;
  row->began_at = server->lived_ms;
}

static void row_waits(struct server *server, struct kept *row) {
  row->state = KEPT_WAITING;
  row->next_at = server->lived_ms + backoff(row);
  server_due(server, row->next_at);
}

/*
 * An id that a row counts towards would be in its way, and one that it has left behind, whose exec was forgotten since,
 * would run its command a second time.
 */
static bool is_taken(struct slice id) {
  for (const struct kept *row = table.rows; row; row = row->next) {
    if (!is_over(row) && counts_alike(slice_of(row->exec->id), id)) return true;
  }
  return false;
}

struct outcome kept_start(struct server *server, const struct exec_order *order, const struct keep_policy *policy,
                          struct exec **exec) {
  size_t size = order->argv.size + order->env.size + order->cwd.size + order->user.size + order->digest.size;
  if (number_at(order->id) == 0) return refused(MALFORMED, "the id does not end with a hyphen and a number");
  if (is_taken(order->id)) return refused(EXEC_CONFLICT, "another command counts by this id");
  if (table.count >= KEPT_MAX) return refused(LIMIT, "too many commands are kept");
  if (table.strings_size + size > KEPT_STRINGS_MAX) return refused(LIMIT, "the commands that are kept are too large");
  struct kept *row = row_new(order, policy, size);
  if (!row) return system_error(ENOMEM);
  struct outcome outcome = exec_start(server, order, exec);
  if (outcome.kind != ANSWER) {
    row_free(row);
    return outcome;
  }
  row_runs(server, row, *exec);
  row->next = table.rows;
  table.rows = row;
  table.count++;
  table.strings_size += size;
  return outcome;
}

bool kept_needs(const struct exec *exec) {
  const struct kept *row = row_of(exec);
  return row && !is_over(row);
}

void kept_stop(const struct exec *exec) {
  struct kept *row = row_of(exec);
  if (row && !is_over(row)) row_over(row, KEPT_STOPPED);
}

void kept_forget(const struct exec *exec) {
  struct kept *row = row_of(exec);
  if (!row) return;
  struct kept **at = &table.rows;
  while (*at != row) at = &(*at)->next;
  *at = row->next;
  row_free(row);
}

void kept_write(const struct server *server, struct writer *out) {
  uint32_t count = 0;
  uint64_t now = realtime_us() / 1000;
  for (const struct kept *row = table.rows; row; row = row->next) count++;
  write_u32(out, count);
  for (const struct kept *row = table.rows; row; row = row->next) {
    uint64_t left = row->next_at > server->lived_ms ? row->next_at - server->lived_ms : 0;
    write_str(out, row->exec->id);
    write_u8(out, (uint8_t)row->state);
    write_u32(out, row->restarts);
    write_u64(out, row->state == KEPT_WAITING ? now + left : 0);
  }
}

/* ── Turns ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome start_again(struct server *server, const struct kept *row, struct exec **exec) {
  char id[EXEC_ID_MAX + 1];
  if (!next_id(row->exec->id, id)) return refused(EXEC_CONFLICT, "the next id would be too long");
  if (exec_find(slice_of(id))) return refused(EXEC_CONFLICT, "another command has the next id");
  if (execs_known() >= KEPT_KNOWN_MAX) return refused(LIMIT, "too many commands are known; forget some");
  struct exec_order order = row->order;
  order.id = slice_of(id);
  return exec_start(server, &order, exec);
}

/* An id that can't be used never can; whatever else is in the way may pass. */
static void begin(struct server *server, struct kept *row) {
  struct exec *exec;
  struct outcome outcome = start_again(server, row, &exec);
  if (outcome.kind == ANSWER) {
    row->restarts++;
    row->tries = 0;
    row_runs(server, row, exec);
    exec_announce_begin(server, exec);
  } else if (outcome.code == EXEC_CONFLICT) {
    row_over(row, KEPT_GIVEN_UP);
  } else {
    row->tries++;
    row_waits(server, row);
  }
}

void kept_begin(struct server *server) {
  for (struct kept *row = table.rows; row; row = row->next) {
    if (row->state != KEPT_WAITING) continue;
    if (server->lived_ms >= row->next_at) {
      begin(server, row);
    } else {
      server_due(server, row->next_at);
    }
  }
}

void kept_follow(struct server *server) {
  for (struct kept *row = table.rows; row; row = row->next) {
    if (row->state != KEPT_RUNNING || !exec_has_ended(row->exec)) continue;
    enum kept_state state = decide(&row->policy, row->exec, server->lived_ms - row->began_at, &row->restarts);
    if (state == KEPT_WAITING) {
      row_waits(server, row);
    } else {
      row_over(row, state);
    }
  }
}

void kept_end(void) {
  while (table.rows) {
    struct kept *row = table.rows;
    table.rows = row->next;
    row_free(row);
  }
}
