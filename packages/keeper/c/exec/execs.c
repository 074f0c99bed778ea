#include "exec/execs.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"
#include "exec/exec_restart.h"

/* A request whose answer waits for output of a command, or for room in its stdin buffer. */
struct waiter {
  struct waiter *next;
  struct pending pending;
  struct exec *exec;
  bool reads;
  uint64_t cursor;
  uint32_t max;
  uint64_t until;
};

static struct waiter *waiters;

static struct outcome no_such_exec(void) {
  return refused(NO_SUCH_EXEC, "no such exec");
}

static bool is_exec_id(struct slice id) {
  if (id.size == 0 || id.size > EXEC_ID_MAX) return false;
  for (size_t i = 0; i < id.size; i++) {
    uint8_t c = id.data[i];
    bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!plain && (i == 0 || (c != '_' && c != '-'))) return false;
  }
  return true;
}

static bool wait_for(struct request *request, struct waiter order) {
  struct waiter *waiter = malloc(sizeof *waiter);
  if (!waiter) return false;
  *waiter = order;
  waiter->pending = pending_of(request);
  waiter->next = waiters;
  waiters = waiter;
  return true;
}

/* ── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Reads a list: a count and that many strings. The returned slice covers the whole list. With `variables`, each string
 * must be NAME=VALUE.
 */
static struct slice read_list(struct reader *in, bool variables, size_t *total) {
  const uint8_t *start = in->at;
  uint32_t count = read_u32(in);
  for (uint32_t i = 0; i < count && !in->bad; i++) {
    struct slice text = read_str(in);
    const uint8_t *equals = memchr(text.data, '=', text.size);
    if (variables && (!equals || equals == text.data)) in->bad = true;
    *total += text.size + 1;
  }
  return (struct slice){start, (size_t)(in->at - start)};
}

static struct terminal_size read_size(struct reader *in) {
  uint16_t cols = read_u16(in);
  return (struct terminal_size){.cols = cols, .rows = read_u16(in)};
}

/* Reads an order to start a command. `total` is set to the size of all strings of arguments and environment. */
static void read_order(struct reader *in, struct exec_order *order, size_t *total) {
  order->id = read_str(in);
  order->argv = read_list(in, false, total);
  order->env = read_list(in, true, total);
  order->cwd = read_str(in);
  order->user = read_str(in);
  order->timeout_ms = read_u64(in);
  order->with_stdin = read_u8(in);
  order->terminal = read_size(in);
  order->journal_cap = read_u64(in);
  order->digest = read_str(in);
}

/* Checks an order to start a command. Must be called after the whole request was read. */
static struct outcome check_order(const struct reader *in, const struct exec_order *order, size_t total) {
  if (!reader_done(in) || !is_exec_id(order->id) || load_u32(order->argv.data) == 0) return malformed();
  if ((order->terminal.cols == 0) != (order->terminal.rows == 0)) {
    return refused(MALFORMED, "a terminal needs both columns and rows");
  }
  if (order->digest.size > EXEC_DIGEST_MAX) return refused(MALFORMED, "digest too long");
  if (total > EXEC_STRINGS_MAX) return refused(TOO_LARGE, "arguments and environment are too large");
  return answered();
}

static bool same_digest(const struct exec *exec, struct slice digest) {
  return strlen(exec->digest) == digest.size && memcmp(exec->digest, digest.data, digest.size) == 0;
}

/*
 * Starts a command. If `policy` is NULL, the command runs once; otherwise it is supervised, which means restarted as
 * the policy says.
 */
static struct outcome start(struct request *request, const struct exec_order *order,
                            const struct restart_policy *policy) {
  struct server *server = request->server;
  struct exec *exec = exec_find(order->id);
  struct outcome outcome = answered();
  bool existed = exec;
  if (existed && !same_digest(exec, order->digest)) return refused(EXEC_CONFLICT, "another command has this id");
  if (existed && policy && !exec->supervised) {
    return refused(EXEC_CONFLICT, "the command with this id is not supervised");
  }
  if (!existed) outcome = policy ? supervise_start(server, order, policy, &exec) : exec_start(server, order, &exec);
  if (outcome.kind != ANSWER) return outcome;
  write_u8(&request->out, existed);
  exec_write(exec, &request->out);
  return answered();
}

static struct outcome handle_start(struct request *request) {
  struct exec_order order;
  size_t total = 0;
  read_order(&request->in, &order, &total);
  struct outcome outcome = check_order(&request->in, &order, total);
  return outcome.kind == ANSWER ? start(request, &order, NULL) : outcome;
}

static bool read_policy(struct reader *in, struct restart_policy *policy) {
  uint8_t on = read_u8(in);
  policy->always = on == 2;
  policy->max = read_u32(in);
  policy->backoff_ms = read_u32(in);
  return (on == 1 || on == 2) && policy->max <= SUPERVISED_RESTARTS_MAX &&
         policy->backoff_ms >= SUPERVISED_BACKOFF_MIN_MS && policy->backoff_ms <= SUPERVISED_BACKOFF_MAX_MS;
}

static struct outcome handle_supervise(struct request *request) {
  struct exec_order order;
  struct restart_policy policy;
  size_t total = 0;
  read_order(&request->in, &order, &total);
  bool sound = read_policy(&request->in, &policy);
  struct outcome outcome = check_order(&request->in, &order, total);
  if (outcome.kind != ANSWER) return outcome;
  if (!sound) return refused(MALFORMED, "invalid restart policy");
  if (order.with_stdin) return refused(MALFORMED, "a supervised command has no stdin");
  return start(request, &order, &policy);
}

/* ── Read ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome read_journal(const struct exec *exec, uint64_t cursor, uint32_t max, struct writer *out) {
  const struct journal *journal = &exec->journal;
  if (cursor < journal->floor) {
    struct outcome outcome = refused(BELOW_FLOOR, "the journal begins later than this cursor");
    outcome.floor = journal->floor;
    return outcome;
  }
  if (cursor > journal->end) return refused(BAD_CURSOR, "the cursor is beyond the journal's end");
  uint8_t *head = writer_room(out, 25);
  if (!head) return system_error(ENOMEM);
  size_t head_at = writer_size(out);
  writer_keep(out, 25);
  uint64_t next = cursor;
  if (cursor == journal->end) {
    write_bytes(out, "", 0);
  } else {
    switch (exec_read(exec, cursor, max, out, &next)) {
      case JOURNAL_BAD_CURSOR:
        return refused(BAD_CURSOR, "no record begins at this cursor");
      case JOURNAL_FAILED:
        return system_error(errno);
      case JOURNAL_READ:
        break;
    }
  }
  if (out->failed) return system_error(ENOMEM);
  head = out->chunk->data + head_at;
  store_u64(head, next);
  store_u64(head + 8, journal->floor);
  store_u64(head + 16, journal->end);
  head[24] = !(exec_has_ended(exec) && next == journal->end);
  return answered();
}

static struct outcome handle_read(struct request *request) {
  struct slice id = read_str(&request->in);
  uint64_t cursor = read_u64(&request->in);
  uint32_t max = read_u32(&request->in);
  uint32_t wait_ms = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  bool nothing = cursor == exec->journal.end && !exec_has_ended(exec);
  struct waiter order = {
      .exec = exec, .reads = true, .cursor = cursor, .max = max, .until = request->server->lived_ms + wait_ms};
  if (nothing && wait_ms > 0 && wait_for(request, order)) return later();
  return read_journal(exec, cursor, max, &request->out);
}

static struct outcome handle_hold(struct request *request) {
  struct slice id = read_str(&request->in);
  uint64_t cursor = read_u64(&request->in);
  uint32_t lease_ms = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  if (cursor > exec->journal.end) return refused(BAD_CURSOR, "the cursor is beyond the journal's end");
  if (cursor < exec->journal.floor) cursor = exec->journal.floor;
  exec_output_hold(request->server, exec, cursor, lease_ms < HOLD_MAX_MS ? lease_ms : HOLD_MAX_MS);
  return answered();
}

/* ── Stdin ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static struct outcome handle_stdin(struct request *request) {
  struct slice id = read_str(&request->in);
  uint64_t offset = read_u64(&request->in);
  bool end = read_u8(&request->in);
  struct slice data = read_bytes(&request->in);
  if (!reader_done(&request->in) || offset > UINT64_MAX - data.size) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  if (offset > exec->input_accepted) return refused(BAD_CURSOR, "the offset is beyond the current stdin position");
  uint64_t skipped = exec->input_accepted - offset;
  uint64_t target = offset + data.size;
  if (skipped < data.size) {
    uint64_t before = exec->input_accepted;
    exec_input(request->server, exec, (struct slice){data.data + skipped, data.size - skipped});
    struct waiter order = {.exec = exec, .until = request->server->lived_ms + STDIN_WAIT_MS};
    if (exec->input_accepted == before && wait_for(request, order)) return later();
  }
  if (end && exec->input_accepted >= target) exec_input_end(request->server, exec);
  write_u64(&request->out, exec->input_accepted);
  return answered();
}

/* ── Signal, cancel, list, forget, resize ────────────────────────────────────────────────────────────────────────── */

static struct outcome handle_signal(struct request *request) {
  struct slice id = read_str(&request->in);
  uint32_t number = read_u32(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  if (number < 1 || number > 64) return system_error(EINVAL);
  /* After the leader was reaped, the kernel may give its process group id to other processes, so no signal is sent. */
  if (exec->reaped) return system_error(ESRCH);
  if (exec->terminal && terminal_signal(exec->stdout_pipe.source.fd, (int)number)) return answered();
  int result = kill(-exec->pid, (int)number);
  if (result < 0 && errno == ESRCH) result = kill(exec->pid, (int)number);
  return result < 0 ? system_error(errno) : answered();
}

static struct outcome handle_cancel(struct request *request) {
  struct slice id = read_str(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  supervise_stop(exec);
  exec_kill(request->server, exec, EXEC_CANCELLED);
  return answered();
}

static void write_one(struct exec *exec, void *context) {
  exec_write(exec, context);
}

static struct outcome handle_list(struct request *request) {
  if (!reader_done(&request->in)) return malformed();
  write_u32(&request->out, execs_known());
  execs_each(write_one, &request->out);
  return answered();
}

static struct outcome handle_list_supervised(struct request *request) {
  if (!reader_done(&request->in)) return malformed();
  supervise_write(request->server, &request->out);
  return answered();
}

static struct outcome handle_forget(struct request *request) {
  struct slice id = read_str(&request->in);
  bool keep_journal = read_u8(&request->in);
  if (!reader_done(&request->in)) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return !keep_journal && is_exec_id(id) && exec_forget_journal(id) ? answered() : no_such_exec();
  if (!exec_has_ended(exec)) return refused(EXEC_RUNNING, "the command is still running");
  /* The keeper can only kill processes of an exec that it knows, so an exec that is being killed is not forgotten. */
  if (exec->killing) return refused(EXEC_RUNNING, "processes of the command are still being killed");
  if (supervise_needs(exec)) return refused(EXEC_RUNNING, "the command is about to be started again");
  for (struct waiter *waiter = waiters; waiter; waiter = waiter->next) {
    if (waiter->exec == exec) waiter->exec = NULL;
  }
  supervise_forget(exec);
  exec_forget(request->server, exec, keep_journal);
  return answered();
}

static struct outcome handle_resize(struct request *request) {
  struct slice id = read_str(&request->in);
  struct terminal_size size = read_size(&request->in);
  if (!reader_done(&request->in) || size.cols == 0 || size.rows == 0) return malformed();
  struct exec *exec = exec_find(id);
  if (!exec) return no_such_exec();
  if (!exec->terminal) return system_error(ENOTTY);
  if (exec->stdout_pipe.source.fd < 0) return system_error(ESRCH);
  return terminal_resize(exec->stdout_pipe.source.fd, size) ? answered() : system_error(errno);
}

/* ── Requests that wait ──────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_due(const struct server *server, const struct waiter *waiter) {
  if (!waiter->exec || server->lived_ms >= waiter->until) return true;
  if (!waiter->reads) return exec_input_room(waiter->exec) >= STDIN_BUFFER_MAX / 2;
  return waiter->cursor < waiter->exec->journal.end || exec_has_ended(waiter->exec);
}

static void settle_waiter(struct waiter *waiter) {
  struct writer out = pending_writer(&waiter->pending, 128);
  struct outcome outcome = answered();
  if (!waiter->exec) {
    outcome = no_such_exec();
  } else if (waiter->reads) {
    outcome = read_journal(waiter->exec, waiter->cursor, waiter->max, &out);
  } else {
    write_u64(&out, waiter->exec->input_accepted);
  }
  pending_settle(&waiter->pending, &out, outcome);
}

void exec_waiters_tick(struct server *server) {
  for (struct waiter **at = &waiters; *at;) {
    struct waiter *waiter = *at;
    bool gone = !waiter->pending.link;
    bool due = !gone && is_due(server, waiter) && link_has_room(waiter->pending.link);
    if (!gone && !due) {
      if (server->lived_ms < waiter->until) server_due(server, waiter->until);
      at = &waiter->next;
      continue;
    }
    /*
     * The waiter is removed from the list before its request is answered. Sending the answer may close the link, and
     * closing a link walks the list.
     */
    *at = waiter->next;
    if (due) settle_waiter(waiter);
    free(waiter);
  }
}

void exec_waiters_link_gone(struct link *link) {
  for (struct waiter *waiter = waiters; waiter; waiter = waiter->next) {
    if (waiter->pending.link == link) waiter->pending.link = NULL;
  }
}

const struct route exec_routes[] = {
    {10, handle_start},     {11, handle_read},            {12, handle_stdin},  {13, handle_signal},
    {14, handle_cancel},    {15, handle_list},            {16, handle_forget}, {17, handle_resize},
    {18, handle_supervise}, {19, handle_list_supervised}, {42, handle_hold},
    {0, NULL},
};
