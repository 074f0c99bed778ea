#include "exec/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#define MULTIPLEXER "/dev/pts/ptmx"
#define MULTIPLEXER_DEVICE makedev(5, 2)
#define DEFAULT_END_OF_FILE 4

static int open_master(void) {
  int fd = open(MULTIPLEXER, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  struct stat stat;
  if (fd < 0) return -1;
  if (fstat(fd, &stat) == 0 && S_ISCHR(stat.st_mode) && stat.st_rdev == MULTIPLEXER_DEVICE) return fd;
  close(fd);
  errno = ENODEV;
  return -1;
}

bool terminal_open(struct terminal_size size, int *master, int *slave) {
  *slave = -1;
  *master = open_master();
  if (*master < 0) return false;
  int unlocked = 0;
  if (ioctl(*master, TIOCSPTLCK, &unlocked) == 0 && terminal_resize(*master, size)) {
    *slave = ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  if (*slave >= 0) return true;
  int error = errno;
  close(*master);
  *master = -1;
  errno = error;
  return false;
}

bool terminal_resize(int master, struct terminal_size size) {
  struct winsize window = {.ws_col = size.cols, .ws_row = size.rows};
  return ioctl(master, TIOCSWINSZ, &window) == 0;
}

/*
 * Writes one end-of-file character, or two in a partially typed line: there the first one only submits the line, and
 * the second one ends the input. In raw mode one is written, and the program receives it as a normal key.
 */
size_t terminal_end_of_file(int master, int last, uint8_t typed[2]) {
  struct termios settings;
  typed[0] = typed[1] = DEFAULT_END_OF_FILE;
  if (tcgetattr(master, &settings) < 0) return 1;
  if (settings.c_cc[VEOF] != _POSIX_VDISABLE) typed[0] = typed[1] = settings.c_cc[VEOF];
  bool begun = last >= 0 && last != '\n' && !(last == '\r' && (settings.c_iflag & ICRNL));
  return begun && (settings.c_lflag & ICANON) ? 2 : 1;
}

bool terminal_signal(int master, int number) {
  pid_t group;
  if (number != SIGINT && number != SIGQUIT && number != SIGTSTP) return false;
  return ioctl(master, TIOCGPGRP, &group) == 0 && group > 0 && ioctl(master, TIOCSIG, number) == 0;
}

void terminal_take(int slave) {
  ioctl(slave, TIOCSCTTY, 0);
}

/* Gives the terminal to a user, but leaves its group as the file system has set it for all terminals. */
void terminal_give(int slave, uint32_t uid) {
  int ignored = fchown(slave, uid, (gid_t)-1);
  ignored |= fchmod(slave, 0620);
  (void)ignored;
}
