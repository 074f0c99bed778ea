/*
 * Timeouts of commands. The keeper enforces them itself, so that they fire even while no server runs. Timeouts count
 * lived time, which excludes pauses and standby.
 */
#include "exec/exec.h"

void exec_timeout_begin(struct server *server, struct exec *exec, uint64_t timeout_ms) {
  if (timeout_ms > 0 && timeout_ms < UINT64_MAX - server->lived_ms) exec->timeout_at = server->lived_ms + timeout_ms;
}

void exec_timeout_schedule(struct server *server, const struct exec *exec) {
  if (exec->timeout_at) server_due(server, exec->timeout_at);
}

void exec_timeout_enforce(struct server *server, struct exec *exec) {
  bool has_passed = exec->timeout_at && server->lived_ms >= exec->timeout_at;
  if (has_passed && !exec->reaped && !exec_has_ended(exec)) exec_kill(server, exec, EXEC_TIMED_OUT);
}
