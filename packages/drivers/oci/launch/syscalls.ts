/**
 * The system calls that programs in a sandbox may use (`ALLOWED`), by theme. All others fail with ENOSYS or, if listed
 * in `REFUSED`, with EPERM. Asynchronous I/O (io_setup, io_uring) is omitted on purpose: its contexts count against one
 * limit for the whole host. The runtime skips names that the architecture does not have.
 */

/** Splits a list of names at white space. */
const list = (names: string): string[] => names.split(/\s+/).filter(Boolean);

export const ALLOWED = [
  // Files by path.
  ...list(`open openat openat2 creat close close_range access faccessat faccessat2 stat lstat fstat newfstatat statx
    statfs fstatfs readlink readlinkat rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mkdir
    mkdirat rmdir mknod mknodat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate ftruncate fallocate
    utime utimes utimensat futimesat getdents getdents64 getcwd chdir fchdir chroot umask name_to_handle_at`),
  // Reading and writing.
  ...list(`read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile copy_file_range splice
    tee vmsplice readahead fadvise64 sync syncfs fsync fdatasync sync_file_range flock fcntl ioctl dup dup2 dup3 pipe
    pipe2 cachestat`),
  ...list(`getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr removexattr
    lremovexattr fremovexattr`),
  // Waiting for events.
  ...list(`select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd
    eventfd2 inotify_init inotify_init1 inotify_add_watch inotify_rm_watch signalfd signalfd4 timerfd_create
    timerfd_settime timerfd_gettime`),
  // Memory.
  ...list(`brk mmap munmap mremap mprotect msync mincore madvise process_madvise process_mrelease mlock mlock2 mlockall
    munlock munlockall memfd_create memfd_secret remap_file_pages membarrier pkey_alloc pkey_free pkey_mprotect
    get_mempolicy set_mempolicy mbind set_mempolicy_home_node map_shadow_stack mseal`),
  // Processes and threads.
  ...list(`fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid getsid
    setsid set_tid_address set_robust_list get_robust_list futex futex_waitv futex_wait futex_wake futex_requeue rseq
    arch_prctl prctl ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd pidfd_send_signal tgkill tkill
    kill pause restart_syscall capget capset seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
    uname sysinfo getcpu getrandom`),
  ...list(`rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigreturn
    rt_sigsuspend sigaltstack alarm getitimer setitimer`),
  ...list(`getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid setresgid
    setfsuid setfsgid setgroups`),
  ...list(`sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler
    sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval
    getpriority setpriority ioprio_get ioprio_set getrlimit setrlimit getrusage times`),
  // Time.
  ...list(`time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep timer_create timer_settime timer_gettime
    timer_getoverrun timer_delete`),
  // Sockets. `socket` itself is allowed by address family, see `SOCKET_FAMILIES`.
  ...list(`socketpair bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt shutdown sendto
    sendmsg sendmmsg recvfrom recvmsg recvmmsg`),
  // System V and POSIX interprocess communication. Each sandbox has its own namespace for them.
  ...list(`shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    mq_timedsend mq_timedreceive mq_notify mq_getsetattr`),
] as const;

/**
 * Privileged system calls, which fail with EPERM. Other calls that are not allowed fail with ENOSYS, but a program
 * without privileges expects EPERM from the calls in this list.
 */
export const REFUSED =
  list(`mount umount umount2 mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount
  fspick pivot_root setns unshare bpf perf_event_open keyctl add_key request_key kexec_load kexec_file_load init_module
  finit_module delete_module create_module reboot swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime
  clock_adjtime adjtimex sethostname setdomainname syslog vhangup iopl ioperm modify_ldt open_by_handle_at lookup_dcookie
  userfaultfd fanotify_init fanotify_mark migrate_pages move_pages nfsservctl uselib ustat sysfs _sysctl`);

/** Address families for which `socket` is allowed: unix, inet, inet6, netlink. */
export const SOCKET_FAMILIES = [1, 2, 10, 16] as const;

/** Allowed arguments of `personality`: Linux, no address randomisation, 32-bit uname, query. None grants privileges. */
export const PERSONALITIES = [0x0, 0x8, 0x20000, 0x40000, 0x20008, 0x60000, 0xffffffff] as const;
