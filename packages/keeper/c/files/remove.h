#ifndef HOLDFAST_REMOVE_H
#define HOLDFAST_REMOVE_H

#include "files/path.h"

struct removal {
  const struct file_rules *rules;
  const char *name;
};

/* Removes an entry of `dir` and everything below it. Returns 0 or an errno. The time that it takes is not
 * limited. */
int remove_tree(int dir, const void *removal);

#endif
