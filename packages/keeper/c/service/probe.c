#include "service/probe.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/exec.h"
#include "exec/exec_mark.h"
#include "exec/proc.h"

struct outcome handle_probe(struct request *request) {
  if (!reader_done(&request->in)) return malformed();
  struct stat root;
  if (stat("/", &root) < 0) return system_error(errno);
  write_u64(&request->out, root.st_dev);
  write_u64(&request->out, root.st_ino);
  write_u64(&request->out, request->server->lived_ms);
  write_u32(&request->out, (uint32_t)processes_count());
  return answered();
}

static uint32_t uid_of(pid_t pid) {
  char text[1024];
  size_t size = process_file(pid, "status", text, sizeof text - 1);
  text[size] = 0;
  const char *line = strstr(text, "\nUid:\t");
  uint32_t uid = 0;
  for (line = line ? line + 6 : ""; *line >= '0' && *line <= '9'; line++) uid = uid * 10 + (uint32_t)(*line - '0');
  return uid;
}

/* Reads a command line. The arguments are separated by spaces instead of NUL. */
static size_t command_line(pid_t pid, char text[COMMAND_LINE_MAX]) {
  size_t size = process_file(pid, "cmdline", text, COMMAND_LINE_MAX);
  while (size > 0 && text[size - 1] == 0) size--;
  for (size_t i = 0; i < size; i++) {
    if (text[i] == 0) text[i] = ' ';
  }
  return size;
}

static void write_exec_id(struct writer *out, pid_t pid) {
  const struct exec *exec = exec_by_serial(exec_mark_of(pid));
  char id[EXEC_ID_MAX + 1];
  if (exec) {
    write_str(out, exec->id);
  } else {
    write_str(out, process_exec_id(pid, id) ? id : "");
  }
}

static void write_process(struct writer *out, const struct process *process, uint64_t ticks, uint64_t page) {
  char line[COMMAND_LINE_MAX];
  write_u32(out, (uint32_t)process->pid);
  write_u32(out, (uint32_t)process->parent);
  write_u32(out, uid_of(process->pid));
  write_u8(out, (uint8_t)process->state);
  write_u64(out, process->cpu_ticks * 1000 / ticks);
  write_u64(out, process->rss_pages * page);
  write_str(out, process->name);
  write_bytes(out, line, command_line(process->pid, line));
  write_exec_id(out, process->pid);
}

struct outcome handle_processes(struct request *request) {
  if (!reader_done(&request->in)) return malformed();
  struct process_table table;
  if (!processes_read(&table)) return system_error(ENOENT);
  uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK);
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  size_t count_at = writer_size(&request->out);
  uint32_t count = 0;
  write_u32(&request->out, 0);
  while (count < table.count && count < PROCESSES_MAX && writer_size(&request->out) < ANSWER_SOFT_MAX) {
    write_process(&request->out, &table.list[count++], ticks, page);
  }
  writer_patch_u32(&request->out, count_at, count);
  processes_free(&table);
  return answered();
}
