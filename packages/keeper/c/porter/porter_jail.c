/*
 * Serves the files of one directory from inside it. The directory's content was written by a sandbox or comes from an
 * archive, so it may have symbolic links to the host, `..` and hostile names. The server does not need to detect them,
 * because it cannot see anything outside the directory: its root is that directory, and its user namespace has only the
 * sandbox's ids. It cannot mount anything either, because its mount namespace belongs to the host's user namespace.
 *
 * There are two processes. The outer one, still on the host, writes the id map of the inner one and waits for it. The
 * inner one is PID 1 of a pid namespace and serves.
 */
#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/serve.h"

#define ID_MAX 0xfffffffeLL
#define CAPABILITY_BITS 64

static const unsigned long keep_capabilities =
    1ul << CAP_CHOWN | 1ul << CAP_DAC_OVERRIDE | 1ul << CAP_DAC_READ_SEARCH | 1ul << CAP_FOWNER | 1ul << CAP_FSETID;

/*
 * Hides a directory that is directly in the new root: makes it a separate mount, because the file server refuses paths
 * on any mount except the root's. Returns true without hiding anything if the name is missing, is not a directory or is
 * a symbolic link. A symbolic link of that name was created by the sandbox, and in the jail it can only lead to the
 * sandbox's own files.
 */
static bool hide(int root, const char *name) {
  char path[64];
  int fd = openat(root, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  bool hidden = mount(path, path, NULL, MS_BIND, NULL) == 0;
  int error = errno;
  close(fd);
  errno = error;
  return hidden;
}

/*
 * Makes the directory the root and the only mount. Mounts that the host has below the directory do not become part of
 * the root. If a directory in the root is hidden, the root is read-only.
 */
static bool enter_root(const char *root, char *const *hidden) {
  struct stat wanted, here;
  int fd = open(root, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &wanted) < 0) return false;
  if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0) return false;
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return false;
  if (mount(root, root, NULL, MS_BIND, NULL) < 0 || chdir(root) < 0 || stat(".", &here) < 0) return false;
  if (here.st_dev != wanted.st_dev || here.st_ino != wanted.st_ino) {
    errno = ESTALE;
    return false;
  }
  struct statvfs limits;
  if (statvfs(".", &limits) < 0) return false;
  bool read_only = *hidden || limits.f_flag & ST_RDONLY;
  unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | (read_only ? MS_RDONLY : 0);
  if (mount(NULL, ".", NULL, MS_BIND | MS_REMOUNT | flags, NULL) < 0) return false;
  int here_fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (here_fd < 0) return false;
  for (; *hidden; hidden++) {
    if (!hide(here_fd, *hidden)) return false;
  }
  close(here_fd);
  if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) return false;
  return close(fd) == 0;
}

static bool reduce_capabilities(void) {
  for (unsigned long bit = 0; bit < CAPABILITY_BITS; bit++) {
    if (keep_capabilities >> bit & 1) continue;
    if (prctl(PR_CAPBSET_DROP, bit, 0, 0, 0) < 0 && errno != EINVAL) return false;
  }
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2] = {0};
  data[0].effective = data[0].permitted = (uint32_t)keep_capabilities;
  return syscall(SYS_capset, &header, data) == 0;
}

/*
 * Becomes root in the user namespace. The parent-death signal is requested last, because changing credentials clears
 * it.
 */
static bool become_root_of_map(void) {
  if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) return false;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || !reduce_capabilities()) return false;
  return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0;
}

/*
 * Runs the inner process. With one byte it reports to the outer process that its user namespace exists. Then it waits
 * for one byte, with which the outer process reports that the id map is written.
 */
static int inner(int link, int outer, const char *root, char *const *hidden) {
  char mapped;
  if (!enter_root(root, hidden)) return porter_failed("the root can't be entered");
  if (unshare(CLONE_NEWUSER) < 0) return porter_failed("no user namespace can be made");
  if (write(outer, "u", 1) != 1 || read(outer, &mapped, 1) != 1) {
    errno = 0;
    return porter_failed("the id map was not written");
  }
  if (!become_root_of_map()) return porter_failed("privileges can't be dropped");
  close(outer);
  umask(022);
  struct serve_options options = {.files = {.uid = 0, .gid = 0, .one_mount = *hidden}};
  return serve_files(link, &options) < 0 ? porter_failed("files can't be served") : PORTER_DONE;
}

static bool write_map(pid_t pid, const char *name, long long base, long long count) {
  char path[64], line[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
  int size = snprintf(line, sizeof line, "0 %lld %lld\n", base, count);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, line, (size_t)size) == size;
  int error = errno;
  close(fd);
  errno = error;
  return written;
}

static int outer(pid_t pid, int inner_end, long long base, long long count) {
  char unshared;
  int status;
  if (read(inner_end, &unshared, 1) == 1) {
    bool mapped = write_map(pid, "uid_map", base, count) && write_map(pid, "gid_map", base, count);
    if (!mapped) porter_failed("the id map can't be written");
    if (!mapped || write(inner_end, "m", 1) != 1) kill(pid, SIGKILL);
  }
  close(inner_end);
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return porter_failed("the jail can't be waited for");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : PORTER_FAILED;
}

/* Connects to the server, and sends the id of this jail, by which the server recognises it. */
static int connect_to(const char *path, uint32_t id) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const uint8_t bytes[] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16), (uint8_t)(id >> 24)};
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
      send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int porter_jail(int argc, char **argv) {
  if (argc < 5) return PORTER_USAGE;
  for (int i = 5; i < argc; i++) {
    if (!*argv[i] || strchr(argv[i], '/')) return PORTER_USAGE;
  }
  const char *root = argv[2];
  long long id = porter_number(argv[1], UINT32_MAX);
  long long base = porter_number(argv[3], ID_MAX);
  long long count = porter_number(argv[4], ID_MAX);
  if (argv[0][0] != '/' || id < 0 || root[0] != '/' || base < 0 || count < 1 || base + count > ID_MAX)
    return PORTER_USAGE;
  int pair[2];
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return porter_failed("prctl");
  int link = connect_to(argv[0], (uint32_t)id);
  if (link < 0) return porter_failed("the server can't be reached");
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) return porter_failed("socketpair");
  if (unshare(CLONE_NEWPID) < 0) return porter_failed("no pid namespace can be made");
  pid_t pid = fork();
  if (pid < 0) return porter_failed("fork");
  if (pid == 0) {
    close(pair[0]);
    return inner(link, pair[1], root, argv + 5);
  }
  close(pair[1]);
  close(link);
  return outer(pid, pair[0], base, count);
}
