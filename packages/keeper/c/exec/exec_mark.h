/*
 * The mark of an exec: a hard limit on realtime CPU time, by which the keeper recognises the exec's processes. A
 * process cannot remove its mark. Every child inherits it, even if its environment, session or parent changes. The
 * value is far too high to limit anything. A random part of the value distinguishes the marks of this keeper from those
 * of any other.
 */
#ifndef HOLDFAST_EXEC_MARK_H
#define HOLDFAST_EXEC_MARK_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Seals the marks: from now on a process can change the limit that serves as the mark only with a secret. The keeper
 * shares the secret with its forked children, but no program that they execute can learn it. Requires no_new_privs. A
 * kernel without system call filters can't seal the marks; there a process can remove its mark.
 */
void exec_marks_init(void);
/*
 * Gives the calling child the mark of the exec with this serial, and erases the secret. The child must still have all
 * of the keeper's Linux capabilities.
 */
void exec_mark_self(uint64_t serial);
/* Returns the serial of the exec whose mark the process has, or 0 if it has none. */
uint64_t exec_mark_of(pid_t pid);

#endif
