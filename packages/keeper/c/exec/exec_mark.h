/*
 * The mark of an exec, which its processes cannot remove: a hard limit on realtime CPU time. Every child
 * inherits it, even if its environment, session or parent changes. The value is far too high to limit
 * anything. A random part distinguishes the marks of this keeper from those of any other.
 */
#ifndef HOLDFAST_EXEC_MARK_H
#define HOLDFAST_EXEC_MARK_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Seals the marks: from now on a process can set the limit only with a secret. The keeper shares the secret with its
 * forked children, but no program that they execute can learn it. Requires no_new_privs. On a kernel without system
 * call filters, a process can lose its mark, but this is improbable.
 */
void exec_marks_init(void);
/*
 * Marks the calling child with the serial of its exec, and erases the secret. The child must still have all of the
 * keeper's capabilities.
 */
void exec_mark_self(uint64_t serial);
/* Returns the serial of the exec whose mark the process has, or 0 if it has none. */
uint64_t exec_mark_of(pid_t pid);

#endif
