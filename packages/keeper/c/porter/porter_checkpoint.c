/*
 * The parts of taking and restoring a checkpoint that CRIU does not do: checksums of CRIU's files, flushing file
 * systems, and two steps in the middle of a restore.
 */
#include "porter/porter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (1024 * 1024)
#define LANES 4
#define FREEZE_TRIES 5000
#define FREEZE_PAUSE_NS (1000 * 1000)

/* ── Sums ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * The state of a checksum. The checksum detects accidents, not forgery, because only root can write to the files.
 *
 * A change within a single word is always detected: different words lead to different values of a lane, and every later
 * step keeps different values different. With four independent lanes the processor need not wait for each
 * multiplication, so data is summed about as fast as memory can be read.
 */
struct sum {
  uint64_t lanes[LANES];
  uint64_t size;
};

static const uint64_t odd = 0x9e3779b97f4a7c15u;

static uint64_t mixed(uint64_t lane, uint64_t word) {
  lane = (lane ^ word) * odd;
  return lane << 29 | lane >> 35;
}

/* Adds data to a checksum. In every call except the last one for a file, `size` must be a multiple of LANES words. */
static void sum_add(struct sum *sum, const unsigned char *data, size_t size) {
  size_t at = 0;
  uint64_t word;
  for (; at + LANES * sizeof word <= size; at += LANES * sizeof word) {
    for (int lane = 0; lane < LANES; lane++) {
      memcpy(&word, data + at + (size_t)lane * sizeof word, sizeof word);
      sum->lanes[lane] = mixed(sum->lanes[lane], word);
    }
  }
  for (; at < size; at++) sum->lanes[0] = mixed(sum->lanes[0], data[at]);
  sum->size += size;
}

static uint64_t sum_end(const struct sum *sum) {
  uint64_t all = mixed(odd, sum->size);
  for (int lane = 0; lane < LANES; lane++) all = mixed(all, sum->lanes[lane]);
  return all;
}

static bool fill(int fd, unsigned char *buffer, size_t *size) {
  for (*size = 0; *size < BUFFER;) {
    ssize_t got = read(fd, buffer + *size, BUFFER - *size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    *size += (size_t)got;
  }
  return true;
}

static bool sum_file(int fd, unsigned char *buffer, struct sum *sum) {
  for (;;) {
    size_t size;
    if (!fill(fd, buffer, &size)) return false;
    sum_add(sum, buffer, size);
    if (size < BUFFER) return true;
  }
}

/* Prints one line per file of a directory: its size, checksum and name. */
int porter_sums(int argc, char **argv) {
  if (argc != 1) return PORTER_USAGE;
  static unsigned char buffer[BUFFER];
  DIR *directory = opendir(argv[0]);
  if (!directory) return errno == ENOENT ? PORTER_GONE : porter_failed("the directory can't be opened");
  errno = 0;
  for (struct dirent *entry; (entry = readdir(directory)); errno = 0) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    struct sum sum = {.size = 0};
    struct stat stat;
    int fd = openat(dirfd(directory), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) < 0) return porter_failed("a file can't be opened");
    if (!S_ISREG(stat.st_mode)) {
      errno = 0;
      return porter_failed("an entry is not a regular file");
    }
    if (!sum_file(fd, buffer, &sum)) return porter_failed("a file can't be read");
    close(fd);
    printf("%llu %016llx %s\n", (unsigned long long)sum.size, (unsigned long long)sum_end(&sum), entry->d_name);
  }
  if (errno != 0) return porter_failed("the directory can't be read");
  closedir(directory);
  return fflush(stdout) == 0 ? PORTER_DONE : porter_failed("the sums can't be written");
}

/* ── Sync ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Flushes the file systems of these paths to disk. */
int porter_sync(int argc, char **argv) {
  if (argc < 1) return PORTER_USAGE;
  for (int i = 0; i < argc; i++) {
    int fd = open(argv[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return porter_failed("the directory can't be opened");
    if (syncfs(fd) < 0) return porter_failed("the file system can't be written out");
    close(fd);
  }
  return PORTER_DONE;
}

/* ── During a restore ────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * Brings up the loopback interface of a restored network namespace. In a new namespace the interface is down, and no
 * socket can be bound to its address until it is up.
 */
static int raise_loopback(const char *pid) {
  char path[64];
  struct ifreq request = {.ifr_name = "lo"};
  snprintf(path, sizeof path, "/proc/%.16s/ns/net", pid);
  int namespace = open(path, O_RDONLY | O_CLOEXEC);
  if (namespace < 0 || setns(namespace, CLONE_NEWNET) < 0) return porter_failed("the network can't be entered");
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) < 0) return porter_failed("the loopback interface is missing");
  request.ifr_flags |= IFF_UP;
  return ioctl(fd, SIOCSIFFLAGS, &request) == 0 ? PORTER_DONE : porter_failed("the loopback interface can't be brought up");
}

static bool write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  int error = errno;
  close(fd);
  errno = error;
  return written;
}

static bool file_has(const char *path, const char *text) {
  char content[512];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t size = read(fd, content, sizeof content - 1);
  close(fd);
  content[size > 0 ? size : 0] = 0;
  return strstr(content, text);
}

/* Freezes a cgroup of version 1 or 2. The files in the cgroup's directory show which of the two versions it has. */
static bool freeze(const char *cgroup) {
  char first[4200], second[4200];
  struct timespec pause = {.tv_nsec = FREEZE_PAUSE_NS};
  snprintf(first, sizeof first, "%.4096s/freezer.state", cgroup);
  snprintf(second, sizeof second, "%.4096s/cgroup.events", cgroup);
  bool old = access(first, F_OK) == 0;
  const char *answer = old ? first : second;
  const char *word = old ? "FROZEN" : "frozen 1";
  if (!old) snprintf(first, sizeof first, "%.4096s/cgroup.freeze", cgroup);
  for (int i = 0; i < FREEZE_TRIES; i++) {
    if (!write_text(first, old ? "FROZEN" : "1")) return false;
    if (file_has(answer, word)) return true;
    nanosleep(&pause, NULL);
  }
  errno = ETIMEDOUT;
  return false;
}

/*
 * CRIU calls this function at each stage of a restore, without arguments; the parameters are in the environment. Just
 * before CRIU resumes the processes, this function freezes them, so that none runs before the host thaws them. If
 * freezing fails, CRIU would resume the processes nevertheless, so this function kills them.
 */
int porter_restoring(const char *stage) {
  const char *pid = getenv("CRTOOLS_INIT_PID");
  const char *cgroup = getenv("HOLDFAST_FREEZER");
  long long number = pid ? porter_number(pid, 0x7fffffff) : -1;
  if (strcmp(stage, "setup-namespaces") == 0) return number > 0 ? raise_loopback(pid) : PORTER_USAGE;
  if (strcmp(stage, "pre-resume") != 0) return PORTER_DONE;
  if (cgroup && freeze(cgroup)) return PORTER_DONE;
  int status = porter_failed("the restored processes can't be frozen");
  if (number > 1) kill((pid_t)number, SIGKILL);
  return status;
}
