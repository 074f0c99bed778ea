/* A running instance, reached from outside by the pid and start time of its first process. */
#ifndef HOLDFAST_PORTER_INSTANCE_H
#define HOLDFAST_PORTER_INSTANCE_H

/*
 * Opens the instance's mount namespace. All files of the process are opened through one descriptor of its
 * /proc directory, after its start time was compared with `started`: the descriptor refers to that process
 * even if the pid is reused. A process in the host's mount namespace is refused, because it is not an
 * instance.
 */
int instance_mounts(const char *pid, const char *started, int *namespace);
/* Enters the namespace. From then on paths are those of the instance. `root` is a descriptor of the
 * instance's root directory. */
int instance_enter(int namespace, int *root);

#endif
