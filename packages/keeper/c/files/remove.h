#ifndef HOLDFAST_REMOVE_H
#define HOLDFAST_REMOVE_H

#include "path.h"

struct removal {
  const struct file_rules *rules;
  const char *name;
};

/* Removes an entry of `dir` with all that is below it: 0 or an errno. Takes as long as it takes. */
int remove_tree(int dir, const void *removal);

#endif
