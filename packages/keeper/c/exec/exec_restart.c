#include "exec/exec_restart.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum supervised_state {
  SUPERVISED_RUNNING = 1,
  SUPERVISED_WAITING = 2,
  SUPERVISED_DONE = 3,
  SUPERVISED_STOPPED = 4,
  SUPERVISED_GIVEN_UP = 5,
};

struct supervised {
  struct supervised *next;
  enum supervised_state state;
  struct restart_policy policy;
  uint32_t restarts;
  /* Number of consecutive failed attempts to start the next run. */
  uint32_t tries;
  /* When the last run began, in lived time, which excludes pauses and standby. */
  uint64_t began_at;
  /* When the next run is due, in lived time, which excludes pauses and standby. */
  uint64_t next_at;
  /* The last run. Its exec stays known as long as this entry exists. */
  struct exec *exec;
  /*
   * The order for every run, without the id. This entry owns the strings of the order until the supervision has ended.
   */
  struct exec_order order;
  uint8_t *strings;
  size_t strings_size;
};

static struct {
  struct supervised *entries;
  /* Number of supervised commands that have not ended. */
  uint32_t count;
  size_t strings_size;
} table;

/* ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_over(const struct supervised *entry) {
  return entry->state != SUPERVISED_RUNNING && entry->state != SUPERVISED_WAITING;
}

/*
 * Decides what happens after a run that ended without a stop request: SUPERVISED_WAITING, SUPERVISED_DONE or
 * SUPERVISED_GIVEN_UP. A run that lasted long enough resets the restart count. A run that was cancelled
 * because the kernel had no memory to watch it is treated as failed.
 */
static enum supervised_state decide(const struct restart_policy *policy, const struct exec *run, uint64_t lived_ms,
                              uint32_t *restarts) {
  bool succeeded = run->state == EXEC_EXITED && run->exit_code == 0;
  if (succeeded && !policy->always) return SUPERVISED_DONE;
  if (lived_ms >= SUPERVISED_RESET_MS) *restarts = 0;
  return *restarts >= policy->max ? SUPERVISED_GIVEN_UP : SUPERVISED_WAITING;
}

static uint64_t backoff(const struct supervised *entry) {
  uint64_t wait = entry->policy.backoff_ms;
  for (uint32_t i = entry->restarts + entry->tries; i > 0 && wait < SUPERVISED_BACKOFF_MAX_MS; i--) wait *= 2;
  return wait < SUPERVISED_BACKOFF_MAX_MS ? wait : SUPERVISED_BACKOFF_MAX_MS;
}

/*
 * Returns the position of the number at the end of an id; 0 if there is none. The number follows a hyphen and
 * has no leading zeros.
 */
static size_t number_at(struct slice id) {
  size_t at = id.size;
  while (at > 0 && id.data[at - 1] >= '0' && id.data[at - 1] <= '9') at--;
  bool sound = at > 0 && id.data[at - 1] == '-' && at < id.size && (id.data[at] != '0' || at + 1 == id.size);
  return sound ? at : 0;
}

static struct slice slice_of(const char *text) {
  return (struct slice){(const uint8_t *)text, strlen(text)};
}

/* Increments the number at the end of an id. Returns false if the id would become too long. */
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

/* ── Entries ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct supervised *entry_of(const struct exec *exec) {
  struct supervised *entry = exec->supervised ? table.entries : NULL;
  while (entry && entry->exec != exec) entry = entry->next;
  return entry;
}

static struct slice take(struct supervised *entry, struct slice from) {
  uint8_t *to = entry->strings + entry->strings_size;
  memcpy(to, from.data, from.size);
  entry->strings_size += from.size;
  return (struct slice){to, from.size};
}

static struct supervised *entry_new(const struct exec_order *order, const struct restart_policy *policy, size_t size) {
  struct supervised *entry = calloc(1, sizeof *entry);
  uint8_t *strings = malloc(size);
  if (!entry || !strings) {
    free(entry);
    free(strings);
    return NULL;
  }
  entry->policy = *policy;
  entry->strings = strings;
  entry->order = *order;
  entry->order.id = (struct slice){0};
  entry->order.argv = take(entry, order->argv);
  entry->order.env = take(entry, order->env);
  entry->order.cwd = take(entry, order->cwd);
  entry->order.user = take(entry, order->user);
  entry->order.digest = take(entry, order->digest);
  return entry;
}

static void entry_free(struct supervised *entry) {
  free(entry->strings);
  free(entry);
}

static void entry_over(struct supervised *entry, enum supervised_state state) {
  entry->state = state;
  table.count--;
  table.strings_size -= entry->strings_size;
  free(entry->strings);
  entry->strings = NULL;
}

static void entry_runs(const struct server *server, struct supervised *entry, struct exec *exec) {
  exec->supervised = true;
  entry->exec = exec;
  entry->state = SUPERVISED_RUNNING;
  entry->began_at = server->lived_ms;
}

static void entry_waits(struct server *server, struct supervised *entry) {
  entry->state = SUPERVISED_WAITING;
  entry->next_at = server->lived_ms + backoff(entry);
  server_due(server, entry->next_at);
}

/*
 * Returns whether the runs of another supervised command have the same id prefix as `id`. The run ids of a command are
 * its prefix and a number that grows by one with each restart, so a new command must not use the prefix of another. If
 * the new command's number were higher, the other command would reach that number and could not restart. If it were
 * lower, the id would already have been used by an earlier run of the other command.
 */
static bool is_taken(struct slice id) {
  for (const struct supervised *entry = table.entries; entry; entry = entry->next) {
    if (!is_over(entry) && counts_alike(slice_of(entry->exec->id), id)) return true;
  }
  return false;
}

struct outcome supervise_start(struct server *server, const struct exec_order *order,
                               const struct restart_policy *policy, struct exec **exec) {
  size_t size = order->argv.size + order->env.size + order->cwd.size + order->user.size + order->digest.size;
  if (number_at(order->id) == 0) return refused(MALFORMED, "the id does not end with a hyphen and a number");
  if (is_taken(order->id)) return refused(EXEC_CONFLICT, "another supervised command uses this id prefix");
  if (table.count >= SUPERVISED_MAX) return refused(LIMIT, "too many supervised commands");
  if (table.strings_size + size > SUPERVISED_STRINGS_MAX) {
    return refused(LIMIT, "the supervised commands are too large together");
  }
  struct supervised *entry = entry_new(order, policy, size);
  if (!entry) return system_error(ENOMEM);
  struct outcome outcome = exec_start(server, order, exec);
  if (outcome.kind != ANSWER) {
    entry_free(entry);
    return outcome;
  }
  entry_runs(server, entry, *exec);
  entry->next = table.entries;
  table.entries = entry;
  table.count++;
  table.strings_size += size;
  return outcome;
}

bool supervise_needs(const struct exec *exec) {
  const struct supervised *entry = entry_of(exec);
  return entry && !is_over(entry);
}

void supervise_stop(const struct exec *exec) {
  struct supervised *entry = entry_of(exec);
  if (entry && !is_over(entry)) entry_over(entry, SUPERVISED_STOPPED);
}

void supervise_forget(const struct exec *exec) {
  struct supervised *entry = entry_of(exec);
  if (!entry) return;
  struct supervised **at = &table.entries;
  while (*at != entry) at = &(*at)->next;
  *at = entry->next;
  entry_free(entry);
}

void supervise_write(const struct server *server, struct writer *out) {
  uint32_t count = 0;
  uint64_t now = realtime_us() / 1000;
  for (const struct supervised *entry = table.entries; entry; entry = entry->next) count++;
  write_u32(out, count);
  for (const struct supervised *entry = table.entries; entry; entry = entry->next) {
    uint64_t left = entry->next_at > server->lived_ms ? entry->next_at - server->lived_ms : 0;
    write_str(out, entry->exec->id);
    write_u8(out, (uint8_t)entry->state);
    write_u32(out, entry->restarts);
    write_u64(out, entry->state == SUPERVISED_WAITING ? now + left : 0);
  }
}

/* ── Turns ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome start_again(struct server *server, const struct supervised *entry, struct exec **exec) {
  char id[EXEC_ID_MAX + 1];
  if (!next_id(entry->exec->id, id)) return refused(EXEC_CONFLICT, "the next id would be too long");
  if (exec_find(slice_of(id))) return refused(EXEC_CONFLICT, "another command has the next id");
  if (execs_known() >= SUPERVISED_KNOWN_MAX) return refused(LIMIT, "too many commands are known; forget some");
  struct exec_order order = entry->order;
  order.id = slice_of(id);
  return exec_start(server, &order, exec);
}

/*
 * Starts the next run. If another exec already has the id of that run, the supervision ends, because every later
 * attempt would fail too. After any other failure, the start is tried again later.
 */
static void begin(struct server *server, struct supervised *entry) {
  struct exec *exec;
  struct outcome outcome = start_again(server, entry, &exec);
  if (outcome.kind == ANSWER) {
    entry->restarts++;
    entry->tries = 0;
    entry_runs(server, entry, exec);
    exec_announce_begin(server, exec);
  } else if (outcome.code == EXEC_CONFLICT) {
    entry_over(entry, SUPERVISED_GIVEN_UP);
  } else {
    entry->tries++;
    entry_waits(server, entry);
  }
}

void supervise_begin(struct server *server) {
  for (struct supervised *entry = table.entries; entry; entry = entry->next) {
    if (entry->state != SUPERVISED_WAITING) continue;
    if (server->lived_ms >= entry->next_at) {
      begin(server, entry);
    } else {
      server_due(server, entry->next_at);
    }
  }
}

void supervise_follow(struct server *server) {
  for (struct supervised *entry = table.entries; entry; entry = entry->next) {
    if (entry->state != SUPERVISED_RUNNING || !exec_has_ended(entry->exec)) continue;
    uint64_t ran_ms = server->lived_ms - entry->began_at;
    enum supervised_state state = decide(&entry->policy, entry->exec, ran_ms, &entry->restarts);
    if (state == SUPERVISED_WAITING) {
      entry_waits(server, entry);
    } else {
      entry_over(entry, state);
    }
  }
}

void supervise_end(void) {
  while (table.entries) {
    struct supervised *entry = table.entries;
    table.entries = entry->next;
    entry_free(entry);
  }
}
