#include "exec/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop/descriptors.h"
#include "exec/exec_mark.h"
#include "exec/terminal.h"
#include "exec/user.h"

#define CAP_BIT(cap) (UINT64_C(1) << (cap))
/*
 * The Linux capabilities that root has in a sandbox. They allow root to change owners, kill processes and change ids
 * inside the sandbox. None of them gives power over the keeper.
 */
#define ROOT_CAPABILITIES                                                                                      \
  (CAP_BIT(CAP_CHOWN) | CAP_BIT(CAP_DAC_OVERRIDE) | CAP_BIT(CAP_FOWNER) | CAP_BIT(CAP_FSETID) |               \
   CAP_BIT(CAP_KILL) | CAP_BIT(CAP_SETGID) | CAP_BIT(CAP_SETUID) | CAP_BIT(CAP_SETPCAP) |                      \
   CAP_BIT(CAP_NET_BIND_SERVICE) | CAP_BIT(CAP_SYS_CHROOT) | CAP_BIT(CAP_SETFCAP))

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define OOM_SCORE "500"
#define DEFAULT_TERM "xterm-256color"
#define ENV_ADDED 5
/* Descriptor of the status pipe in the child: directly above stdio. No descriptor above it is open in the child. */
#define STATUS_FD 3

/*
 * Descriptor of /dev/null, which becomes stdin of commands without input. The keeper opens it before any command runs.
 */
static int null_fd = -1;
static uint64_t own_capabilities;

const char *child_failure_name(enum child_failure failure) {
  switch (failure) {
    case CHILD_NOT_FOUND:
      return "not_found";
    case CHILD_NOT_EXECUTABLE:
      return "not_executable";
    case CHILD_CWD:
      return "cwd";
    case CHILD_USER:
      return "user";
    case CHILD_RUNS:
      break;
  }
  return "";
}

_Noreturn static void fail(enum child_failure failure, const char *subject, const char *why) {
  uint8_t byte = (uint8_t)failure;
  ssize_t ignored = write(STATUS_FD, &byte, 1);
  char line[512];
  snprintf(line, sizeof line, "holdfast: %.300s: %s\n", subject, why);
  ignored = write(STDERR_FILENO, line, strlen(line));
  (void)ignored;
  _exit(failure == CHILD_NOT_FOUND ? 127 : 126);
}

static const char *reason(int error) {
  const char *text = strerrordesc_np(error);
  return text ? text : "unknown error";
}

static char *copy_slice(struct slice text) {
  char *copy = malloc(text.size + 1);
  if (!copy) _exit(126);
  memcpy(copy, text.data, text.size);
  copy[text.size] = 0;
  return copy;
}

/* Copies the strings of a list, and leaves room for `more` strings and a terminating NULL. */
static char **copy_list(struct slice list, size_t more, size_t *count) {
  struct reader in = reader_of(list.data, list.size);
  *count = read_u32(&in);
  char **strings = calloc(*count + more + 1, sizeof *strings);
  if (!strings) _exit(126);
  for (size_t i = 0; i < *count; i++) strings[i] = copy_slice(read_str(&in));
  return strings;
}

static const char *env_get(char **env, const char *name) {
  size_t size = strlen(name);
  for (; *env; env++) {
    if (strncmp(*env, name, size) == 0 && (*env)[size] == '=') return *env + size + 1;
  }
  return NULL;
}

static void env_add(char **env, const char *name, const char *value) {
  if (env_get(env, name)) return;
  char *text = malloc(strlen(name) + strlen(value) + 2);
  if (!text) _exit(126);
  sprintf(text, "%s=%s", name, value);
  while (*env) env++;
  *env = text;
}

static void env_remove(char **env, const char *name) {
  size_t size = strlen(name);
  char **kept = env;
  for (; *env; env++) {
    if (strncmp(*env, name, size) != 0 || (*env)[size] != '=') *kept++ = *env;
  }
  *kept = NULL;
}

static char **build_env(const struct child_order *order, const struct user *user) {
  size_t count;
  char **env = copy_list(order->env, ENV_ADDED, &count);
  env_remove(env, "HOLDFAST_EXEC");
  env_add(env, "HOLDFAST_EXEC", order->id);
  env_add(env, "HOME", user->home);
  env_add(env, "USER", user->name);
  env_add(env, "LOGNAME", user->name);
  if (order->terminal) env_add(env, "TERM", DEFAULT_TERM);
  return env;
}

/*
 * Makes the child non-dumpable, so that other commands cannot inspect it, trace it or take its descriptors. This is
 * needed until the child executes the command: until then the child has the user and Linux capabilities of the command,
 * but also a copy of the keeper's memory. Executing a program makes the process dumpable again. On some machines a
 * change of the user does so too, so the child calls this function again after the change.
 */
static void hide(void) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/*
 * Sets up stdio and closes all other descriptors now. A successful execve would close them too, but may come much
 * later. As long as the child has a copy of a pipe's write end open, the pipe's reader does not see the end of the
 * stream.
 */
static void set_stdio(const struct child_order *order) {
  int input = order->stdin_fd >= 0 ? order->stdin_fd : null_fd;
  if (order->terminal) terminal_take(input = order->stdout_fd);
  dup2(order->terminal ? order->stdout_fd : order->stderr_fd, STDERR_FILENO);
  dup2(order->stdout_fd, STDOUT_FILENO);
  if (input < 0 || dup2(input, STDIN_FILENO) < 0) close(STDIN_FILENO);
  if (order->status_fd != STATUS_FD) dup3(order->status_fd, STATUS_FD, O_CLOEXEC);
  descriptors_close_from(STATUS_FD + 1);
}

static void set_surroundings(const struct child_order *order) {
  hide();
  setsid();
  set_stdio(order);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  umask(022);
  /* Commands run with normal priority. The keeper may have a higher one, so that it answers under any load. */
  if (getpriority(PRIO_PROCESS, 0) < 0) setpriority(PRIO_PROCESS, 0, 0);
  setrlimit(RLIMIT_NOFILE, &order->files);
  exec_mark_self(order->serial);
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t ignored = write(fd, OOM_SCORE, strlen(OOM_SCORE));
  (void)ignored;
  close(fd);
}

static bool set_capabilities(uint64_t kept) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct sets[2] = {0};
  for (int i = 0; i < 2; i++) sets[i].permitted = sets[i].effective = (uint32_t)(kept >> (32 * i));
  return syscall(SYS_capset, &header, sets) == 0;
}

static bool read_capabilities(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct sets[2];
  if (syscall(SYS_capget, &header, sets) < 0) return false;
  own_capabilities = sets[0].permitted | (uint64_t)sets[1].permitted << 32;
  return true;
}

/*
 * Limits the Linux capabilities of commands through the bounding set. The keeper keeps its own capabilities, because
 * the bounding set only limits those that are gained by executing a program.
 */
bool child_init(void) {
  null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) {
    if (!(ROOT_CAPABILITIES & CAP_BIT(cap))) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
  }
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && read_capabilities() && set_capabilities(own_capabilities);
}

/*
 * Makes the command's user the owner of the terminal or the pipes, so that the command can open /dev/stdout and the
 * like.
 */
static void give_stdio(const struct child_order *order, const struct user *user) {
  if (order->terminal) {
    terminal_give(STDOUT_FILENO, user->uid);
    return;
  }
  int ignored = fchown(STDOUT_FILENO, user->uid, user->gid);
  ignored |= fchown(STDERR_FILENO, user->uid, user->gid);
  if (order->stdin_fd >= 0) ignored |= fchown(STDIN_FILENO, user->uid, user->gid);
  (void)ignored;
}

static bool become(const struct child_order *order, const struct user *user) {
  if (geteuid() == 0) {
    give_stdio(order, user);
    if (setgroups(0, NULL) < 0 && errno != EPERM) return false;
    if (setresgid(user->gid, user->gid, user->gid) < 0) return false;
    if (setresuid(user->uid, user->uid, user->uid) < 0) return false;
  } else if (user->uid != geteuid()) {
    return false;
  }
  return set_capabilities(user->uid == 0 ? ROOT_CAPABILITIES & own_capabilities : 0);
}

/*
 * Makes the command end when the keeper ends. If the keeper is PID 1, the kernel kills every process of the sandbox
 * when the keeper ends, so nothing needs to be done. Otherwise the kernel is asked to kill this child when its parent
 * ends.
 */
static void stay_with(pid_t keeper) {
  if (keeper == 1) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != keeper) _exit(126);
}

static void enter(const struct child_order *order, const struct user *user) {
  if (order->cwd.size == 0) {
    if (chdir(user->home) < 0 && chdir("/") < 0) fail(CHILD_CWD, "/", reason(errno));
    return;
  }
  const char *cwd = copy_slice(order->cwd);
  if (chdir(cwd) < 0) fail(CHILD_CWD, cwd, reason(errno));
}

/* Executes the program. If it is a text file without an interpreter line, runs it with /bin/sh, as shells do. */
static void execute(const char *path, char **argv, size_t count, char **env) {
  execve(path, argv, env);
  if (errno != ENOEXEC) return;
  char **shell = calloc(count + 2, sizeof *shell);
  if (!shell) return;
  shell[0] = (char *)"/bin/sh";
  shell[1] = (char *)path;
  for (size_t i = 1; i < count; i++) shell[i + 1] = argv[i];
  execve(shell[0], shell, env);
  free(shell);
  errno = ENOEXEC;
}

static bool is_absence(int error) {
  return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ENODEV || error == ESTALE;
}

/*
 * Executes the program from the first directory of PATH that has it. Returns only if that fails: EACCES if a file was
 * found but may not be executed, ENOENT if none was found, otherwise the errno of the failure.
 */
static int search(char **argv, size_t count, char **env) {
  const char *path = env_get(env, "PATH");
  if (!path) path = DEFAULT_PATH;
  int error = ENOENT;
  for (;;) {
    size_t size = (size_t)(strchrnul(path, ':') - path);
    char file[PATH_MAX];
    int length = snprintf(file, sizeof file, "%.*s%s%s", (int)size, path, size ? "/" : "", argv[0]);
    if (length > 0 && (size_t)length < sizeof file) {
      execute(file, argv, count, env);
      if (errno == EACCES) {
        error = EACCES;
      } else if (!is_absence(errno)) {
        return errno;
      }
    }
    if (path[size] == 0) return error;
    path += size + 1;
  }
}

/* Runs the command in the forked child. */
_Noreturn static void run(const struct child_order *order, pid_t keeper) {
  set_surroundings(order);
  struct user user;
  if (!user_find(order->user, &user)) fail(CHILD_USER, copy_slice(order->user), "no such user");
  size_t count;
  char **argv = copy_list(order->argv, 0, &count);
  char **env = build_env(order, &user);
  if (!become(order, &user)) fail(CHILD_USER, user.name, reason(errno));
  hide();
  stay_with(keeper);
  enter(order, &user);
  int error = ENOENT;
  if (strchr(argv[0], '/')) {
    execute(argv[0], argv, count, env);
    error = errno;
  } else if (argv[0][0]) {
    error = search(argv, count, env);
  }
  if (is_absence(error)) fail(CHILD_NOT_FOUND, argv[0], "not found");
  fail(CHILD_NOT_EXECUTABLE, argv[0], reason(error));
}

pid_t child_start(const struct child_order *order) {
  pid_t keeper = getpid();
  pid_t pid = fork();
  if (pid == 0) run(order, keeper);
  return pid;
}
