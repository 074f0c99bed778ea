/* Serves files on one connected socket. This is the service of a jailed porter. */
#ifndef HOLDFAST_SERVE_H
#define HOLDFAST_SERVE_H

#include <stdbool.h>
#include <stdint.h>

struct file_policy {
  /* Uid of a created file if the request names no uid and the file does not replace an existing one. */
  uint32_t uid;
  /* Gid of a created file if the request names no gid and the file does not replace an existing one. */
  uint32_t gid;
  /* Whether to refuse requests for /.holdfast and for everything on the control directory's mount. */
  bool reserve;
  /* The control directory if `reserve` is set; otherwise NULL. */
  const char *control;
  /*
   * Whether to refuse paths on any mount except the root's mount. Used for the files of a sandbox that is not running:
   * its other mounts exist only while it runs, so a path on them cannot be served.
   */
  bool one_mount;
};

struct serve_options {
  struct file_policy files;
  /* The installation id that a hello must carry; NULL accepts any. */
  const char *installation;
  const char *sandbox;
};

/*
 * Answers hello, ping and the file requests of PROTOCOL.md on `fd`, a connected stream socket, until the peer closes
 * it, sends a malformed frame or is silent for 15 s (5 s before its hello). Takes ownership of `fd` and closes it.
 *
 * The caller is single-threaded and has already pivoted, mapped ids and dropped privileges: paths are resolved as the
 * calling process sees them. /proc is not needed. SIGCHLD is blocked and SIGPIPE ignored; only children forked by this
 * function are reaped. The working directory becomes the root.
 *
 * Returns 0 when the link has ended, or -1 with errno if serving could not start.
 */
int serve_files(int fd, const struct serve_options *options);

#endif
