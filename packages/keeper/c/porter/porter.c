#include "porter/porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *usage;
  /* Whether the command may outlive the process that started it. */
  bool outlives;
} commands[] = {
    {"signal", porter_signal, "PID STARTTIME SIGNAL", false},
    {"overlay", porter_overlay, "MARKER TARGET UPPER WORK LOWER...", false},
    {"disk", porter_disk, "IMAGE TARGET OPTIONS", false},
    {"umount", porter_umount, "TARGET", false},
    {"rmtree", porter_rmtree, "PATH", false},
    {"copy", porter_copy, "FROM TO MAXBYTES NAME...", false},
    {"copy-detached", porter_copy_detached, "FROM TO MAXBYTES NAME...", false},
    {"spread", porter_spread, "DIRECTORY", false},
    {"jail", porter_jail, "SOCKET ID ROOT IDBASE IDCOUNT [HIDDEN...]", false},
    {"spawn", porter_spawn, "", false},
    {"sums", porter_sums, "DIRECTORY", false},
    {"sync", porter_sync, "DIRECTORY...", false},
    {"rename-keeper", porter_rename_keeper, "PID STARTTIME OLD NEW HOSTNAME [OLDINSTALLATION NEWINSTALLATION]", false},
    {"mount", porter_mount, "PID STARTTIME SOURCE SUBPATH TARGET ro|rw SOURCEOWNER TARGETOWNER", false},
    {"unmount", porter_unmount, "PID STARTTIME TARGET UID GID MODE", false},
    {"unseal", porter_unseal, "ROOT PATH UID GID MODE", false},
    {"stage", porter_stage, "SOURCE SUBPATH TARGET ro|rw OWNER", false},
    {"drive-root", porter_drive_root, "PATH IDBASE OWNER", false},
    {"usage", porter_usage, "PATH", false},
    {"remount", porter_remount, "PID STARTTIME TARGET", false},
    {"words", porter_cmdlines, "PID STARTTIME...", false},
    {"private", porter_private,
     "[--enter FILE] [--umount PATH]... [--run FILE] [--tmp DIRECTORY] [--bind FROM TO] -- COMMAND ARGUMENTS...", true},
};

int porter_failed(const char *what) {
  if (errno) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
  } else {
    fprintf(stderr, "%s\n", what);
  }
  return PORTER_FAILED;
}

long long porter_number(const char *text, long long max) {
  long long value = 0;
  if (!*text) return -1;
  for (; *text; text++) {
    if (*text < '0' || *text > '9' || value > (max - (*text - '0')) / 10) return -1;
    value = value * 10 + (*text - '0');
  }
  return value;
}

int porter_process(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d", (int)pid);
  return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/*
 * Returns a numeric field of /proc/PID/stat. The name in field 2 may contain parentheses and spaces, so
 * fields are counted from the last ')'.
 */
long long porter_field(int process, int field) {
  char text[2048];
  int fd = openat(process, "stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return -1;
  text[size] = 0;
  char *at = strrchr(text, ')');
  for (int i = 2; at && i < field; i++) at = strchr(at + 1, ' ');
  if (!at) return -1;
  at[1 + strspn(at + 1, "0123456789")] = 0;
  return porter_number(at + 1, __LONG_LONG_MAX__ / 10);
}

static long long start_time(pid_t pid) {
  int process = porter_process(pid);
  if (process < 0) return -1;
  long long started = porter_field(process, PORTER_STARTED);
  close(process);
  return started;
}

/*
 * Sends a signal to a process with this start time. The pidfd is opened before the start time is compared,
 * because from then on it refers to that process even if the pid is reused.
 */
int porter_signal(int argc, char **argv) {
  if (argc != 3) return PORTER_USAGE;
  long long pid = porter_number(argv[0], 0x7fffffff);
  long long started = porter_number(argv[1], __LONG_LONG_MAX__ / 10);
  long long number = porter_number(argv[2], SIGRTMAX);
  if (pid <= 0 || started < 0 || number < 0) return PORTER_USAGE;
  int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
  if (fd < 0) return errno == ESRCH ? PORTER_GONE : porter_failed("pidfd_open");
  if (start_time((pid_t)pid) != started) return PORTER_GONE;
  if (syscall(SYS_pidfd_send_signal, fd, (int)number, NULL, 0) == 0) return PORTER_DONE;
  return errno == ESRCH ? PORTER_GONE : porter_failed("pidfd_send_signal");
}

/*
 * Makes ext4 place the subdirectories that will be created in a directory far apart from each other. Without this flag
 * they would be close together, and creating and removing files in one of them would slow down the others: ext4's
 * search for a free inode passes every inode freed nearby in the last minutes. Other file systems have neither the flag
 * nor this search, so if the flag cannot be set on them, that is no error.
 */
int porter_spread(int argc, char **argv) {
  if (argc != 1) return PORTER_USAGE;
  int fd = open(argv[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return porter_failed("open");
  unsigned int flags;
  bool known = ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0;
  if (known) flags |= FS_TOPDIR_FL;
  if (known && ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0) return PORTER_DONE;
  bool unknown = errno == ENOTTY || errno == EOPNOTSUPP || errno == EINVAL || errno == EPERM;
  return unknown ? PORTER_DONE : porter_failed("flags");
}

static int usage(void) {
  fprintf(stderr, "usage:\n  porter --version\n");
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    fprintf(stderr, "  porter %s %s\n", commands[i].name, commands[i].usage);
  }
  return PORTER_USAGE;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    puts(HOLDFAST_VERSION);
    return PORTER_DONE;
  }
  const char *stage = getenv("CRTOOLS_SCRIPT_ACTION");
  if (argc == 1 && stage) return porter_restoring(stage);
  for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(argv[1], commands[i].name) != 0) continue;
    /*
     * Makes the kernel kill the command when its parent process dies. No other process tracks the command, so a command
     * that hangs would otherwise remain forever.
     */
    if (!commands[i].outlives) prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = commands[i].run(argc - 2, argv + 2);
    return status == PORTER_USAGE ? usage() : status;
  }
  return usage();
}
