/* A living instance, reached from outside by the pid and start time of its first process. */
#ifndef HOLDFAST_PORTER_INSTANCE_H
#define HOLDFAST_PORTER_INSTANCE_H

/*
 * Its mount namespace. Everything is reached through the directory whose start time was compared: it means that very
 * process, whoever gets the pid later. One that shares the host's mounts is not an instance.
 */
int instance_mounts(const char *pid, const char *started, int *namespace);
/* From here on paths are those of the instance; `root` is the directory that they begin at. */
int instance_enter(int namespace, int *root);

#endif
