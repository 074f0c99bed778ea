/*
 * The mark of an exec, which its processes can't lose: a hard limit on realtime CPU time, inherited by every child
 * whatever becomes of its environment, session and parents. It is far too high to limit anything. A random part tells
 * this keeper's marks from any other's.
 */
#ifndef HOLDFAST_MARK_H
#define HOLDFAST_MARK_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Seals the marks: from here on that limit can only be set by who knows a secret that this process shares with its
 * forked children, and that no program it runs can learn. New privileges have to be given up before. Where the kernel
 * has no filter for system calls, marks are merely improbable to be lost.
 */
void marks_init(void);
/* In the child, while it still has all of the keeper's capabilities; forgets the secret. */
void mark_self(uint64_t serial);
/* The serial of the exec that a process is marked with; 0 where there is none. */
uint64_t mark_of(pid_t pid);

#endif
