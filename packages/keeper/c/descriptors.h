/* What a forked child leaves behind of its parent's. */
#ifndef HOLDFAST_DESCRIPTORS_H
#define HOLDFAST_DESCRIPTORS_H

/* Closes every descriptor from `first` on. */
void descriptors_close_from(unsigned first);

#endif
