/* A running instance, reached from outside by the pid and start time of its first process. */
#ifndef HOLDFAST_PORTER_INSTANCE_H
#define HOLDFAST_PORTER_INSTANCE_H

/*
 * Opens the mount namespace of the instance, by the pid and start time of its first process. All files of the process
 * are opened through one descriptor of its /proc directory, which refers to the same process even if the pid is reused.
 * A process in the host's mount namespace is refused, because it is not an instance.
 */
int instance_mounts(const char *pid, const char *started, int *namespace);
/*
 * Enters the mount namespace of an instance. From then on paths are those of the instance. `root` is set to a
 * descriptor of the instance's root directory.
 */
int instance_enter(int namespace, int *root);

#endif
