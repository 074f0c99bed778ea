/*
 * The porter: the keeper's counterpart on the host, for the few operations that need system calls Node does
 * not offer. Every command does one thing and exits, except the two that serve: a jail serves files, and a
 * spawner starts helpers. A failure is reported in one line on stderr.
 */
#ifndef HOLDFAST_PORTER_H
#define HOLDFAST_PORTER_H

#include <sys/types.h>

enum porter_exit {
  PORTER_DONE = 0,
  PORTER_FAILED = 1,
  PORTER_USAGE = 2,
  /* The target no longer exists. */
  PORTER_GONE = 3,
  /* The result would exceed the size limit of the command. */
  PORTER_TOO_MUCH = 4,
  /* The command found a state that does not allow the operation. The first word on stdout names the reason. */
  PORTER_REFUSED = 5,
};

/* The commands. Each takes the arguments after its name and returns the exit status. */
int porter_signal(int argc, char **argv);
int porter_overlay(int argc, char **argv);
int porter_disk(int argc, char **argv);
int porter_umount(int argc, char **argv);
int porter_private(int argc, char **argv);
int porter_rmtree(int argc, char **argv);
int porter_copy(int argc, char **argv);
int porter_copy_detached(int argc, char **argv);
int porter_spread(int argc, char **argv);
int porter_jail(int argc, char **argv);
int porter_spawn(int argc, char **argv);
int porter_sums(int argc, char **argv);
int porter_sync(int argc, char **argv);
int porter_rename_keeper(int argc, char **argv);
int porter_mount(int argc, char **argv);
int porter_unmount(int argc, char **argv);
int porter_unseal(int argc, char **argv);
int porter_stage(int argc, char **argv);
int porter_drive_root(int argc, char **argv);
int porter_usage(int argc, char **argv);
int porter_remount(int argc, char **argv);
int porter_cmdlines(int argc, char **argv);

/* CRIU calls this at each stage of a restore. `stage` is the name of the stage; CRIU passes no arguments. */
int porter_restoring(const char *stage);

/* Prints `what`, with the reason if errno is set, and returns PORTER_FAILED. */
int porter_failed(const char *what);
/* Parses a decimal number of at most `max`. Returns -1 for anything else. */
long long porter_number(const char *text, long long max);

/*
 * Unmounts the topmost mount at a path. A symbolic link in the path's last component is not followed. A busy mount is
 * detached. Returns -1 with errno if the unmount fails.
 */
int porter_unmount_one(const char *target);

/*
 * Opens a process's directory in /proc. The descriptor never refers to another process, even if the pid is reused.
 * Returns -1 with errno if the directory cannot be opened.
 */
int porter_process(pid_t pid);
/* Fields of /proc/PID/stat, numbered as in proc(5). */
#define PORTER_STARTED 22
#define PORTER_ENVIRONMENT_START 50
#define PORTER_ENVIRONMENT_END 51
/* Returns a numeric field of /proc/PID/stat; -1 if the process no longer exists. */
long long porter_field(int process, int field);

#endif
