/*
 * The porter: the keeper's twin on the host, for the few acts that need system calls Node doesn't have. Every command
 * does one thing and ends, but for those that serve: a jail its files, a spawner its helpers. What went wrong is said in one
 * line on stderr.
 */
#ifndef HOLDFAST_PORTER_H
#define HOLDFAST_PORTER_H

#include <sys/types.h>

enum porter_exit {
  PORTER_DONE = 0,
  PORTER_FAILED = 1,
  PORTER_USAGE = 2,
  /* What was to be acted on is not there any more. */
  PORTER_GONE = 3,
  /* It would take more room than it may. */
  PORTER_TOO_MUCH = 4,
  /* What was found forbids it; which of the reasons that can be is the first word on stdout. */
  PORTER_REFUSED = 5,
};

/* Each takes the arguments behind its name and returns the exit status. */
int porter_signal(int argc, char **argv);
int porter_overlay(int argc, char **argv);
int porter_disk(int argc, char **argv);
int porter_umount(int argc, char **argv);
int porter_private(int argc, char **argv);
int porter_rmtree(int argc, char **argv);
int porter_copy(int argc, char **argv);
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
int porter_words(int argc, char **argv);

/* Run by CRIU, which passes no arguments: the stage of the restore. */
int porter_restoring(const char *stage);

/* Says `what`, with the reason where errno has one, and returns PORTER_FAILED. */
int porter_failed(const char *what);
/* A decimal number of at most `max` and nothing else; -1 where it isn't one. */
long long porter_number(const char *text, long long max);

/* Takes one mount off a path whose last part is no link; a busy one is detached. -1 with errno. */
int porter_unmount_one(const char *target);

/* The open directory of a process in /proc, which never becomes another's; -1 with errno. */
int porter_process(pid_t pid);
/* Fields of its stat, by their numbers in proc(5). */
#define PORTER_STARTED 22
#define PORTER_ENVIRONMENT_START 50
#define PORTER_ENVIRONMENT_END 51
/* A field that is a number; -1 where the process is gone. */
long long porter_field(int process, int field);

#endif
