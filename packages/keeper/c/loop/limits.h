/* Every number of the keeper, with its name. Times are in milliseconds. */
#ifndef HOLDFAST_LIMITS_H
#define HOLDFAST_LIMITS_H

#define KIB 1024u
#define MIB (1024u * 1024u)

#define PROTOCOL_VERSION 2u

/* Largest value of a frame's size field, and largest piece of data inside one. */
#define FRAME_SIZE_MAX (MIB + 4u * KIB)
#define FRAME_DATA_MAX MIB
#define MESSAGE_MAX 200u

#define LINKS_MAX 16
/* Those whose first frame has not come yet, and all that has a place. */
#define NEWCOMERS_MAX 256
#define CONNECTIONS_MAX (LINKS_MAX + NEWCOMERS_MAX)
/* Newcomers that are taken in one turn. */
#define ACCEPTS_PER_TURN 32
#define REQUESTS_IN_FLIGHT_MAX 256u
#define LINK_QUEUE_MAX (4u * MIB)
#define LINK_SILENCE_MS 15000u
#define LINK_GREETING_MS 5000u
#define LINK_STUCK_MS 15000u
/* Bytes of requests taken from one link before the others get their turn. */
#define LINK_TURN_BYTES (4u * MIB)
#define LINK_INPUT_BUFFER (64u * KIB)
/* How long newcomers wait after one could not be taken for want of descriptors or memory. */
#define LISTEN_PAUSE_MS 100u

#define STREAMS_MAX 256u
/* What is taken from one side of a stream at a time, and so the most that is ever kept for the other. */
#define STREAM_PIECE (64u * KIB)
/* What the kernel may keep for a slow side; its own default grows to megabytes. */
#define STREAM_SOCKET_BUFFER (256u * KIB)
#define DIAL_MS 5000u

#define HANDLES_MAX 64u
#define JOBS_MAX 64u
#define DIR_BUFFER (32u * KIB)
#define DIR_ENTRIES_MAX 4096u
/* An answer that has grown beyond this takes no further entries: what comes on top still fits the frame. */
#define ANSWER_SOFT_MAX (MIB - 64u * KIB)
#define SYMLINKS_MAX 40
#define REMOVE_DEPTH_MAX 64
/* Passes over one directory: each takes a very deep tree down by one depth. */
#define REMOVE_PASSES_MAX 100000
#define REMOVE_NAMES_MAX 100

/* Watches of one link, the directories of all of them together, and what is queued of one for a slow reader. */
#define WATCHES_MAX 32u
#define WATCH_DIRECTORIES_MAX 8192u
#define WATCH_QUEUE_MAX (256u * KIB)
/* Events that are taken, and pieces of directories that are read, before the links get their turn. */
#define WATCH_TURN_BYTES (16u * KIB)
#define WATCH_TURN_READS 8
#define WATCH_READ_BUFFER (4u * KIB)
/* Between two looks at all directories because of mounts. */
#define WATCH_REMOUNT_MS 1000u

#define EXECS_RUNNING_MAX 512u
#define EXECS_KNOWN_MAX 4096u
#define EXEC_ID_MAX 64u
/* Marks of processes have 24 bits for it. */
#define EXEC_SERIAL_MAX 0xFFFFFFu
#define EXEC_DIGEST_MAX 96u
#define EXEC_STRINGS_MAX MIB
/* Descriptors that no command takes from links, files and looks into /proc. */
#define DESCRIPTORS_RESERVED 32u
/* More than all commands, sinks, links and files together ever have open. */
#define DESCRIPTORS_MAX 65536u
#define STDIN_BUFFER_MAX MIB
#define STDIN_WAIT_MS 1000u
#define DRAIN_MS 500u
/* Reads of one pipe before the others get their turn. */
#define DRAIN_TURN_READS 16
/* A pipe that was found full so often gets a larger buffer: a command and its keeper then take turns less often. */
#define PIPE_FULL_READS 4
#define PIPE_BUSY_SIZE (512u * KIB)
#define PIPE_BUSY_RECORDS 4
/* Outputs of forgotten execs that are read on; a further one takes the place of the oldest. */
#define SINKS_MAX 4096u
#define SINK_BUFFER (16u * KIB)
#define KILL_PAUSE_MIN_MS 2u
#define KILL_PAUSE_MAX_MS 200u
#define KILL_CALM_MS 5u
/* After this long of killing in vain the outcome says that something survived. */
#define KILL_GIVE_UP_MS 30000u

/* Rows of runs that are not over, and what all of them together keep of their orders. */
#define KEPT_MAX 64u
#define KEPT_STRINGS_MAX (4u * MIB)
/* Where so many execs are known none begins that nobody asked for: a server that was away finds places for its own. */
#define KEPT_KNOWN_MAX (EXECS_KNOWN_MAX / 2)
#define KEPT_RESTARTS_MAX 1000u
#define KEPT_BACKOFF_MIN_MS 10u
#define KEPT_BACKOFF_MAX_MS 60000u
/* A run of this length begins the count of restarts anew. */
#define KEPT_ANEW_MS 60000u

#define JOURNAL_RECORD_MAX (64u * KIB)
#define JOURNAL_CAP_MIN (64u * KIB)
#define JOURNAL_STEPS 8u
/* Marks that fit between floor and end at the smallest cap, where one record overshoots it by itself. */
#define JOURNAL_MARKS_MAX 20u

/* Of the porter that starts helpers: how many at once, and what may wait for a server that does not read. */
#define HELPERS_MAX 512u
#define SPAWN_QUEUE_MAX MIB
#define SPAWN_READ (64u * KIB)
/* Reads of a pipe whose helper has ended: more than a pipe holds. */
#define SPAWN_LAST_READS 32
#define SPAWN_LINK 3

#define PROCESSES_MAX 4096u
#define COMMAND_LINE_MAX 256u

/* One turn of the loop adds at most this to the lived time, and sleeps less than it. */
#define TURN_MAX_MS 1000u
#define TURN_SLEEP_MS 900u
/* Memory is given back after so long without a request. */
#define IDLE_TRIM_MS 1000u

#endif
