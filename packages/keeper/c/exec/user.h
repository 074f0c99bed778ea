/* Who a command runs as. */
#ifndef HOLDFAST_USER_H
#define HOLDFAST_USER_H

#include <stdbool.h>
#include <stdint.h>

#include "frame.h"

struct user {
  uint32_t uid;
  uint32_t gid;
  char name[64];
  char home[256];
};

/*
 * Resolves what a start asks for against the text of a passwd file: empty for the default user, `uid[:gid]`, or a name
 * with an optional `:gid`. False where there is no such user.
 */
bool user_resolve(struct slice wanted, const char *passwd, size_t size, struct user *user);
/* The same against the image's passwd. */
bool user_find(struct slice wanted, struct user *user);

#endif
