/* The user that a command runs as. */
#ifndef HOLDFAST_USER_H
#define HOLDFAST_USER_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/frame.h"

struct user {
  uint32_t uid;
  uint32_t gid;
  char name[64];
  char home[256];
};

/*
 * Resolves the user of a start request by looking it up in `passwd`, the text of a passwd file. `wanted` is empty for
 * the default user, or has the form `uid[:gid]` or `name[:gid]`. Returns false if there is no such user.
 */
bool user_resolve(struct slice wanted, const char *passwd, size_t size, struct user *user);
/* Reads the image's passwd file and resolves the user with its text, as user_resolve does. */
bool user_find(struct slice wanted, struct user *user);

#endif
