/* All limits of the keeper and the porter. Times are in milliseconds. */
#ifndef HOLDFAST_LIMITS_H
#define HOLDFAST_LIMITS_H

#define KIB 1024u
#define MIB (1024u * 1024u)

#define PROTOCOL_VERSION 2u

/* Maximum value of a frame's size field, which counts the bytes after that field. */
#define FRAME_SIZE_MAX (MIB + 4u * KIB)
/* Maximum number of bytes of file content or exec output that one answer carries. */
#define FRAME_DATA_MAX MIB
#define MESSAGE_MAX 200u

#define LINKS_MAX 16
/* Maximum number of connections that have not sent their first frame yet. */
#define NEWCOMERS_MAX 256
/* Maximum number of all connections together. */
#define CONNECTIONS_MAX (LINKS_MAX + NEWCOMERS_MAX)
/* Maximum number of connections accepted in one turn. */
#define ACCEPTS_PER_TURN 32
#define REQUESTS_IN_FLIGHT_MAX 256u
#define LINK_QUEUE_MAX (4u * MIB)
#define LINK_SILENCE_MS 15000u
#define LINK_GREETING_MS 5000u
#define LINK_STUCK_MS 15000u
/* Maximum number of bytes of requests processed from one link before the other links get their turn. */
#define LINK_TURN_BYTES (4u * MIB)
#define LINK_INPUT_BUFFER (64u * KIB)
/* Time for which the keeper accepts no connections, after accepting one failed for lack of descriptors or memory. */
#define LISTEN_PAUSE_MS 100u

#define STREAMS_MAX 256u
/*
 * Maximum number of bytes that are read from one side of a stream at a time, and that are buffered for the other
 * side.
 */
#define STREAM_PIECE (64u * KIB)
/* Size of a stream's socket buffer, which by default would grow to megabytes. */
#define STREAM_SOCKET_BUFFER (256u * KIB)
#define DIAL_MS 5000u

#define HANDLES_MAX 64u
#define JOBS_MAX 64u
#define DIR_BUFFER (32u * KIB)
#define DIR_ENTRIES_MAX 4096u
/* At this size a directory listing stops growing, so that the rest of the answer still fits in the frame. */
#define ANSWER_SOFT_MAX (MIB - 64u * KIB)
#define SYMLINKS_MAX 40
#define REMOVE_DEPTH_MAX 64
/*
 * Maximum number of passes over one directory that is being removed. Each pass reduces the depth of a very deep tree by
 * one level.
 */
#define REMOVE_PASSES_MAX 100000
#define REMOVE_NAMES_MAX 100

/* Maximum number of watches of one link. */
#define WATCHES_MAX 32u
/* Maximum number of directories of all watches of one link together. */
#define WATCH_DIRECTORIES_MAX 8192u
/* Maximum number of bytes queued for one watch whose reader is slow. */
#define WATCH_QUEUE_MAX (256u * KIB)
/* Maximum number of bytes of events that the watches of one link process in one turn of the loop. */
#define WATCH_TURN_BYTES (16u * KIB)
/* Maximum number of directory reads for the watches of one link in one turn of the loop. */
#define WATCH_TURN_READS 8
#define WATCH_READ_BUFFER (4u * KIB)
/* Minimum interval between two rescans of all directories after mount changes. */
#define WATCH_REMOUNT_MS 1000u

#define EXECS_RUNNING_MAX 512u
#define EXECS_KNOWN_MAX 4096u
#define EXEC_ID_MAX 64u
/* Maximum serial of an exec: the mark on an exec's processes has 24 bits for the serial. */
#define EXEC_SERIAL_MAX 0xFFFFFFu
#define EXEC_DIGEST_MAX 96u
#define EXEC_STRINGS_MAX MIB
/* Number of descriptors reserved for links, files and /proc. Commands never use them. */
#define DESCRIPTORS_RESERVED 32u
/* Maximum number of descriptors that commands, drains, links and files have open together. */
#define DESCRIPTORS_MAX 65536u
#define STDIN_BUFFER_MAX MIB
#define STDIN_WAIT_MS 1000u
#define DRAIN_MS 500u
/* Maximum time for which output is held if the reader does not renew the hold. */
#define HOLD_MAX_MS 300000u
#define WATCH_RETRY_MS 100u
/* Maximum number of reads from one pipe in one turn of the loop, before the other pipes are read. */
#define DRAIN_TURN_READS 16
/* After this number of reads that found a pipe full, its buffer is enlarged, so that command and keeper switch
 * less often. */
#define PIPE_FULL_READS 4
#define PIPE_BUSY_SIZE (512u * KIB)
#define PIPE_BUSY_RECORDS 4
/* Maximum number of drained outputs of forgotten execs. If one more is added, the oldest is closed. */
#define DRAINS_MAX 4096u
#define DRAIN_BUFFER (16u * KIB)
#define KILL_PAUSE_MIN_MS 2u
#define KILL_PAUSE_MAX_MS 200u
#define KILL_CALM_MS 5u
/*
 * If processes survive killing for this long, the keeper stops trying, and the outcome of the exec reports the
 * survivors.
 */
#define KILL_GIVE_UP_MS 30000u

/* Maximum number of supervised commands that have not ended. */
#define SUPERVISED_MAX 64u
/* Maximum total memory of the orders of all supervised commands that have not ended. */
#define SUPERVISED_STRINGS_MAX (4u * MIB)
/*
 * At this number of known execs the keeper stops restarting commands, so that there is room for new execs
 * when the server returns.
 */
#define SUPERVISED_KNOWN_MAX (EXECS_KNOWN_MAX / 2)
#define SUPERVISED_RESTARTS_MAX 1000u
#define SUPERVISED_BACKOFF_MIN_MS 10u
#define SUPERVISED_BACKOFF_MAX_MS 60000u
/* A run that lasts at least this long resets the restart count. */
#define SUPERVISED_RESET_MS 60000u

#define JOURNAL_RECORD_MAX (64u * KIB)
#define JOURNAL_CAP_MIN (64u * KIB)
#define JOURNAL_STEPS 8u
/*
 * Maximum number of marks of a journal, which are the positions up to which its oldest part can be freed. Usually about
 * JOURNAL_STEPS marks are in use. More are needed at the smallest cap, because one record can be as large as that cap.
 */
#define JOURNAL_MARKS_MAX 20u

/* Maximum number of helpers that run at a time. */
#define HELPERS_MAX 512u
/*
 * Maximum number of bytes that the spawner queues for a server that does not read. At this size the spawner reads
 * nothing until the server reads.
 */
#define SPAWN_QUEUE_MAX MIB
#define SPAWN_READ (64u * KIB)
/* Maximum number of reads from the pipe of an ended helper: enough to read everything that a pipe can contain. */
#define SPAWN_LAST_READS 32
#define SPAWN_LINK 3

#define PROCESSES_MAX 4096u
#define COMMAND_LINE_MAX 256u

/*
 * Maximum time that one turn of the loop adds to lived time. If more time has passed since the last turn, the process
 * was paused or in standby meanwhile, and that time must not bring deadlines closer.
 */
#define TURN_MAX_MS 1000u
/* Maximum time that one turn of the loop sleeps. */
#define TURN_SLEEP_MS 900u
/* Unused memory is returned to the system after this time without a request. */
#define IDLE_TRIM_MS 1000u

#endif
