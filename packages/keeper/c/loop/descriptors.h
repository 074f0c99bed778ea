/* What a forked child leaves behind of its parent's, and what the keeper keeps for itself. */
#ifndef HOLDFAST_DESCRIPTORS_H
#define HOLDFAST_DESCRIPTORS_H

#include <stdbool.h>

/* Closes every descriptor from `first` on. */
void descriptors_close_from(unsigned first);
/* Whether `fd`, the newest, leaves fewer than are reserved: a new one is the lowest free. */
bool descriptors_scarce(int fd);

#endif
