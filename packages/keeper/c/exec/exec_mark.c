#include "exec/exec_mark.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop/limits.h"
#include "exec/proc.h"

#define MARK_BASE (UINT64_C(1) << 52)
#define SERIAL_BITS 24
#define MARK_LINE "Max realtime timeout"

#if defined(__x86_64__)
#define ARCH_NATIVE AUDIT_ARCH_X86_64
#define ARCH_SMALL AUDIT_ARCH_I386
#define SMALL_SYS_SETRLIMIT 75
#define SMALL_SYS_PRLIMIT64 340
/* Clears the bit that distinguishes an x32 system call from the native call with the same number. */
#define NUMBER_MASK (~0x40000000u)
#elif defined(__aarch64__)
#define ARCH_NATIVE AUDIT_ARCH_AARCH64
#define ARCH_SMALL AUDIT_ARCH_ARM
#define SMALL_SYS_SETRLIMIT 75
#define SMALL_SYS_PRLIMIT64 369
#define NUMBER_MASK (~0u)
#else
#error "the numbers of setrlimit and prlimit64 are not known here"
#endif

static uint64_t exec_mark_base;
/*
 * A secret without which the filter refuses to change the mark. The keeper passes it to prlimit64 in a sixth argument,
 * which the kernel ignores and the filter checks.
 */
static uint64_t secret;

/* Indices of the filter's instructions. */
enum {
  START,
  IF_NATIVE,
  NATIVE_NUMBER,
  NATIVE_MASK,
  IF_SETRLIMIT,
  IF_PRLIMIT64,
  IF_SMALL,
  SMALL_NUMBER,
  IF_SMALL_SETRLIMIT,
  IF_SMALL_PRLIMIT64,
  SETRLIMIT,
  IF_SETRLIMIT_MARK,
  PRLIMIT64,
  IF_PRLIMIT64_MARK,
  PRLIMIT64_NEW,
  IF_READ,
  PRLIMIT64_NEW_HIGH,
  IF_READ_HIGH,
  SECRET,
  IF_SECRET,
  SECRET_HIGH,
  IF_SECRET_HIGH,
  REFUSE_IT,
  ALLOW_IT,
  LINES,
};

#define FIELD(name) (uint32_t)offsetof(struct seccomp_data, name)
#define LOW(argument) (FIELD(args) + 8 * (argument))
#define HIGH(argument) (LOW(argument) + 4)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field)
#define JUMP(line, value, yes, no) \
  [line] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, (yes) - (line) - 1, (no) - (line) - 1)

/*
 * Installs a system call filter that protects the resource limit that serves as the mark. The filter refuses two calls
 * that would change this limit: setrlimit(resource, limit), and prlimit64(pid, resource, new, old, -, secret) without
 * the secret. It allows all other calls, including a prlimit64 that only reads the limit because `new` is NULL.
 */
static void seal(void) {
  struct sock_filter lines[LINES] = {
      [START] = LOAD(FIELD(arch)),
      JUMP(IF_NATIVE, ARCH_NATIVE, NATIVE_NUMBER, IF_SMALL),
      [NATIVE_NUMBER] = LOAD(FIELD(nr)),
      [NATIVE_MASK] = BPF_STMT(BPF_ALU | BPF_AND | BPF_K, NUMBER_MASK),
      JUMP(IF_SETRLIMIT, SYS_setrlimit, SETRLIMIT, IF_PRLIMIT64),
      JUMP(IF_PRLIMIT64, SYS_prlimit64, PRLIMIT64, ALLOW_IT),
      JUMP(IF_SMALL, ARCH_SMALL, SMALL_NUMBER, ALLOW_IT),
      [SMALL_NUMBER] = LOAD(FIELD(nr)),
      JUMP(IF_SMALL_SETRLIMIT, SMALL_SYS_SETRLIMIT, SETRLIMIT, IF_SMALL_PRLIMIT64),
      JUMP(IF_SMALL_PRLIMIT64, SMALL_SYS_PRLIMIT64, PRLIMIT64, ALLOW_IT),
      [SETRLIMIT] = LOAD(LOW(0)),
      JUMP(IF_SETRLIMIT_MARK, RLIMIT_RTTIME, REFUSE_IT, ALLOW_IT),
      [PRLIMIT64] = LOAD(LOW(1)),
      JUMP(IF_PRLIMIT64_MARK, RLIMIT_RTTIME, PRLIMIT64_NEW, ALLOW_IT),
      [PRLIMIT64_NEW] = LOAD(LOW(2)),
      JUMP(IF_READ, 0, PRLIMIT64_NEW_HIGH, SECRET),
      [PRLIMIT64_NEW_HIGH] = LOAD(HIGH(2)),
      JUMP(IF_READ_HIGH, 0, ALLOW_IT, SECRET),
      [SECRET] = LOAD(LOW(5)),
      JUMP(IF_SECRET, (uint32_t)secret, SECRET_HIGH, REFUSE_IT),
      [SECRET_HIGH] = LOAD(HIGH(5)),
      JUMP(IF_SECRET_HIGH, (uint32_t)(secret >> 32), ALLOW_IT, REFUSE_IT),
      [REFUSE_IT] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      [ALLOW_IT] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {.len = LINES, .filter = lines};
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
  explicit_bzero(lines, sizeof lines);
}

void exec_marks_init(void) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) < 0) random = (uint64_t)getpid();
  exec_mark_base = MARK_BASE + ((random & EXEC_SERIAL_MAX) << SERIAL_BITS);
  if (getrandom(&secret, sizeof secret, 0) == sizeof secret) seal();
}

void exec_mark_self(uint64_t serial) {
  uint64_t mark = exec_mark_base + serial;
  struct rlimit limit = {.rlim_cur = mark, .rlim_max = mark};
  syscall(SYS_prlimit64, 0, RLIMIT_RTTIME, &limit, NULL, NULL, secret);
  explicit_bzero(&secret, sizeof secret);
}

uint64_t exec_mark_of(pid_t pid) {
  char text[2048];
  size_t size = process_file(pid, "limits", text, sizeof text - 1);
  text[size] = 0;
  const char *line = strstr(text, MARK_LINE);
  if (!line) return 0;
  line += strlen(MARK_LINE);
  while (*line == ' ') line++;
  line = strchr(line, ' ');
  while (line && *line == ' ') line++;
  uint64_t hard = process_number(line);
  return hard > exec_mark_base && hard - exec_mark_base <= EXEC_SERIAL_MAX ? hard - exec_mark_base : 0;
}
