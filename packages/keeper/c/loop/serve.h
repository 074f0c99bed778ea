/* The file server on one connected socket: what a jailed porter offers. */
#ifndef HOLDFAST_SERVE_H
#define HOLDFAST_SERVE_H

#include <stdbool.h>
#include <stdint.h>

struct file_policy {
  /* Owner of what is made where the request doesn't name one and nothing is replaced. */
  uint32_t uid;
  uint32_t gid;
  /* Refuse /.holdfast and everything on the control directory's mount. */
  bool reserve;
  /* The control directory, where `reserve` is set; else NULL. */
  const char *control;
  /* Refuse what lies on another mount than the root: only a running sandbox has what belongs there. */
  bool one_mount;
};

struct serve_options {
  struct file_policy files;
  /* What a hello must carry; NULL where any is taken. */
  const char *installation;
  const char *sandbox;
};

/*
 * Answers hello, ping and the file requests of PROTOCOL.md on `fd`, a connected stream socket, until the other side
 * closes it, breaks the framing or falls silent for 15 s (5 s before its hello). Takes `fd` over and closes it.
 *
 * The caller is single threaded, is already where it wants to be (pivoted, ids mapped, privileges dropped): paths are
 * taken as they are in this process. /proc is not needed. SIGCHLD gets blocked and SIGPIPE ignored; only children that
 * the server itself forked are waited for. The working directory becomes the root.
 *
 * Returns 0 when the link is over, -1 with errno where serving could not begin.
 */
int serve_files(int fd, const struct serve_options *options);

#endif
