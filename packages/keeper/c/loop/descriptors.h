/* Closes descriptors in forked children, and detects when few are left. */
#ifndef HOLDFAST_DESCRIPTORS_H
#define HOLDFAST_DESCRIPTORS_H

#include <stdbool.h>

/* Closes every descriptor from `first` on. */
void descriptors_close_from(unsigned first);
/*
 * Returns whether at most DESCRIPTORS_RESERVED descriptors are free. `fd` is the newest descriptor. The kernel assigns
 * the lowest free number, so `fd` shows how many descriptors are in use.
 */
bool descriptors_scarce(int fd);

#endif
