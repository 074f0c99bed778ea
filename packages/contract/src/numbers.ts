/**
 * Every number that an operator can set, with its default. The server accepts a partial `Numbers` and takes the rest
 * from this table.
 */
export const NUMBERS = {
  /** Interval of the link heartbeat, which the server sends and the keeper expects. */
  heartbeatMs: 5_000,
  /** Maximum time without a byte on a link. After it, the link is considered dead, even without a FIN. */
  linkDeadMs: 10_000,
  /** First wait before reconnecting a lost link. The wait doubles with each failure. Each wait is randomized. */
  linkRetryMinMs: 2,
  /** Longest wait before reconnecting a lost link. */
  linkRetryMaxMs: 2_000,
  /** How long a call to a sandbox waits for a new link if the link to its keeper is lost. */
  linkWaitMs: 5_000,
  /** Interval between observation passes over all running instances. */
  observeEveryMs: 5_000,
  /** Interval of periodic maintenance: new proofs of degraded sandboxes, storing of activity times, expiry. */
  maintainEveryMs: 5_000,
  /** Maximum age of a sandbox's last proof. If it is older, a call first runs a new proof. */
  proofFreshMs: 15_000,
  proofDeadlineMs: 8_000,
  /** Deadline of a create, from its acceptance to the proof that the sandbox is ready. */
  createDeadlineMs: 60_000,
  /** Deadline of one attempt to stop an instance. */
  stopAttemptMs: 45_000,
  /** How long a delete call waits until the instance has been stopped. */
  deleteWaitMs: 30_000,
  /** Waits between attempts to stop an instance. After the last attempt, the instance is only observed. */
  stopBackoffMs: [5_000, 10_000, 30_000, 60_000, 300_000],
  exhaustedRecheckMs: 600_000,
  /** An orphaned resource is removed only if it is still found at least this long after it was first found. */
  orphanGraceMs: 300_000,
  orphanCheckEveryMs: 150_000,
  /** How long the record, files and journals of a failed sandbox are kept. */
  failedKeptMs: 86_400_000,
  execWaitDefaultMs: 240_000,
  execWaitMaxMs: 240_000,
  /** Time after an exec's timeout at which the server itself ends the exec, if the keeper has not done so. */
  execTimeoutGraceMs: 10_000,
  /** Maximum number of execs that run at a time, per sandbox. */
  execsPerSandbox: 256,
  /** Maximum number of queued execs per sandbox. */
  execsQueuedPerSandbox: 1_000,
  /** How long an exec may stay queued. */
  execQueueMs: 600_000,
  execStartDeadlineMs: 15_000,
  /**
   * Maximum number of named processes per sandbox, including ended ones. When it is exceeded, the process that ended
   * first is removed.
   */
  processesPerSandbox: 64,
  /** First interval between readiness checks. Later intervals are longer. */
  readyPollMinMs: 50,
  /** Longest interval between readiness checks before the readiness timeout. */
  readyPollMaxMs: 1_000,
  /** Interval between readiness checks after the readiness timeout. */
  unreadyPollMs: 5_000,
  /** Deadline of one connection attempt of a readiness check. */
  readyDialMs: 2_000,
  /** Maximum number of ended execs that a keeper holds in memory. The journals of older execs are read from disk. */
  execsInKeeper: 1_000,
  /** How long an ended exec's id stays valid and its output readable, even if its sandbox is deleted. */
  execRetentionMs: 3_600_000,
  retentionEveryMs: 30_000,
  /**
   * Maximum number of ended execs kept per sandbox. If this limit or journalsPerSandboxBytes is exceeded, the oldest
   * ended execs are deleted before the end of execRetentionMs.
   */
  execsKeptPerSandbox: 10_000,
  /** Maximum size of the journals of ended execs, per sandbox. */
  journalsPerSandboxBytes: 1_024 * 1_048_576,
  /**
   * Maximum size of the journals of all deleted sandboxes together. If it is exceeded, the oldest journals are deleted
   * early.
   */
  journalsOfDeletedBytes: 4_096 * 1_048_576,
  /**
   * Maximum size of `stdout`, and of `stderr`, in the response of a waiting call. The complete output is in the
   * journal.
   */
  execInlineBytes: 1_048_576,
  journalCapBytes: 64 * 1_048_576,
  /**
   * When journalCapBytes of a command's output are unread, the command waits for its reader. If the reader is connected
   * and takes no output for this long, the oldest output is dropped and the command continues.
   */
  outputHoldMs: 60_000,
  /**
   * When journalCapBytes of a command's output are unread, the command waits for its reader. If the reader has
   * disconnected, or was announced and has not yet connected, the command waits for this long. Then the oldest output
   * is dropped and the command continues.
   */
  outputReturnMs: 10_000,
  streamKeepaliveMs: 5_000,
  /** Deadline to connect to a port. */
  portConnectMs: 10_000,
  /** Deadline for the response of the program that listens on a port. */
  portAnswerMs: 300_000,
  /** Traffic on a connection to a port is recorded as activity of the sandbox at most once within this time. */
  portTouchEveryMs: 1_000,
  /** Maximum number of previews per sandbox. */
  previewsPerSandbox: 100,
  /** Maximum number of tokens per preview. */
  tokensPerPreview: 100,
  /** Default validity of a preview token. */
  previewTokenMs: 86_400_000,
  /** Maximum number of concurrent readers of one exec's output. */
  readersPerExec: 64,
  /** Maximum number of concurrent readers of the output of all execs together. */
  readersMax: 2_000,
  /** Maximum number of concurrent followers of the event timeline. */
  eventFollowersMax: 200,
  /**
   * Maximum duration of an exec's output stream. When a stream ends at this limit, a reader that still exists
   * reconnects with its cursor. A reader that has disappeared without closing its connection is removed by this limit.
   */
  streamMaxMs: 1_800_000,
  /**
   * Time after the end of a sandbox's TTL at which its keeper ends the sandbox, if the keeper has no link to the
   * server.
   */
  keeperExpiryGraceMs: 60_000,
  /** Deadline of a single file, directory or probe request to the keeper. */
  keeperCallMs: 30_000,
  /**
   * Maximum number of file calls per sandbox that run at a time and hold an open file or directory in the keeper. A
   * keeper can run 64 such calls at a time; the remaining 16 are reserved for proofs.
   */
  fileCallsPerSandbox: 48,
  /** Maximum number of queued file calls per sandbox. */
  fileCallsWaiting: 1_000,
  /** How long a file call may stay queued. */
  fileCallWaitMs: 20_000,
  /**
   * Maximum number of file calls of drives and of sandboxes in standby that run at a time. A separate pair of processes,
   * a jail, serves each of these calls.
   */
  jailsAtOnce: 16,
  /** Maximum number of file calls that wait for a jail. */
  jailsWaiting: 256,
  /** Maximum number of searches in files that run at a time, each in its own thread. */
  searchesAtOnce: 4,
  /** Maximum number of queued searches in files. */
  searchesWaiting: 256,
  /** Maximum number of tries of an update. A try fails if another caller changes the same sandbox at the same time. */
  updateTriesMax: 20,
  /**
   * Maximum number of tries of a call to reach its sandbox. A try fails if the sandbox is suspended again before it
   * serves the call. It also fails if the wake finds that the sandbox's last instance still exists.
   */
  callTriesMax: 10,
  /** Maximum number of launches that run at a time. */
  launchesAtOnce: 4,
  /** Maximum number of queued launches. */
  launchesWaiting: 1_000,
  /** How long a create may stay queued before its own deadline starts. */
  launchQueueMs: 300_000,
  maxSandboxes: 1_000,
  maxSandboxesPerKey: 1_000,
  /** Minimum free disk space of the state directory. While less is free, new sandboxes are rejected. */
  diskReserveBytes: 2 * 1_073_741_824,
  /** Minimum free memory of the host. While less is free, new sandboxes are rejected. */
  memoryReserveBytes: 268_435_456,
  /** Deadline of a capacity measurement. If the measurement takes longer, the capacity is considered unmeasured. */
  measureMs: 5_000,
  /**
   * Free disk space below which the sandbox that writes fastest is frozen. It stays frozen until diskReserveBytes are
   * free again.
   */
  diskFreezeBytes: 1_073_741_824,
  diskGuardEveryMs: 5_000,
  /**
   * Minimum write rate, per second, of a sandbox that is frozen because the disk is almost full. A slower sandbox is
   * not the one that fills the disk.
   */
  diskFreezeRateBytes: 1_048_576,
  /**
   * Maximum number of consecutive launch failures. When it is reached, launches are suspended for launchesSuspendedMs;
   * then one launch is admitted as a probe.
   */
  launchFailuresMax: 5,
  launchesSuspendedMs: 30_000,
  /**
   * Maximum number of cold starts of a sandbox after lost memory, within restartWindowMs. When one more would be
   * needed, the sandbox fails. restartWindowMs is several times as long as healGiveUpMs, so that it can contain several
   * restarts of an instance that never serves.
   */
  restartsMax: 3,
  restartWindowMs: 3_600_000,
  /** Interval at which the recovery ladder is evaluated. */
  healEveryMs: 1_000,
  /** How long an instance may be unresponsive before the first step of the recovery ladder. */
  healAfterMs: 5_000,
  /** Deadline of the proof after a step of the recovery ladder. */
  healTryMs: 10_000,
  /** Maximum number of attempts at one step of the recovery ladder. */
  healTriesPerRung: 2,
  /** A step of the recovery ladder counts as successful if the sandbox keeps serving for this long after the step. */
  healHoldMs: 15_000,
  /**
   * Time after which an instance that does not answer is stopped, even if a busy host may be the cause. It is longer
   * than alertStuckMs, so that the operator is alerted first.
   */
  healGiveUpMs: 660_000,
  /** Maximum number of instances, over all sandboxes, that the recovery ladder stops per minute. */
  healRestartsPerMinute: 3,
  /**
   * After this number of repairs of a sandbox within healWindowMs, the recovery ladder skips all steps except the last.
   */
  healsMax: 5,
  healWindowMs: 600_000,
  /** Usage samples kept per instance, one per observation pass. */
  usageSamples: 60,
  /** Default observation window of a diagnosis. */
  diagnosisWindowMs: 3_000,
  /** Longest observation window of a diagnosis. */
  diagnosisWindowMaxMs: 10_000,
  /**
   * Maximum number of sandboxes that are diagnosed at a time. Concurrent callers for the same sandbox share one
   * diagnosis.
   */
  diagnosesAtOnce: 4,
  diagnosesWaiting: 256,
  /**
   * Deadline of one attempt to save a sandbox's memory to disk. Calls to the sandbox are held until the attempt ends.
   */
  standbyDeadlineMs: 120_000,
  /** Deadline of a wake, including its proof. Calls to the sandbox are held until the wake ends. */
  wakeDeadlineMs: 30_000,
  /** Deadline of a freeze or thaw. */
  freezeMs: 5_000,
  /** Maximum number of calls per sandbox that are held while it wakes or while its memory is saved. */
  heldPerSandbox: 256,
  /** Maximum number of sandboxes that are suspended at a time. */
  standbysAtOnce: 2,
  /** Maximum number of queued suspensions. */
  standbysWaiting: 1_000,
  /** Maximum number of sandboxes that are woken at a time. */
  wakesAtOnce: 4,
  /** Maximum number of queued wakes. */
  wakesWaiting: 1_000,
  /** How long a standby on request, or a checkpoint, waits for calls in progress before it is refused. */
  quietWaitMs: 5_000,
  /**
   * Maximum number of queued changes of one sandbox. The limit applies separately to the sandbox's decisions, mounts,
   * previews, processes and pauses.
   */
  changesWaiting: 10_000,
  /** Maximum number of queued writes to one exec's stdin. */
  stdinWritesWaiting: 256,
  /** Maximum number of named checkpoints per sandbox. */
  checkpointsPerSandbox: 16,
  /** Maximum number of queued checkpoint changes of one sandbox. */
  checkpointChangesWaiting: 16,
  /** Maximum number of queued checkpoint copies of all sandboxes; one copy runs at a time. */
  checkpointsWaiting: 1_000,
  maxDrives: 1_000,
  /** Maximum number of drives mounted per sandbox. */
  mountsPerSandbox: 32,
  /** Deadline of one attempt to create, mount, unmount or remove a drive. */
  driveCallMs: 60_000,
  /** How long a call waits for the measurement of a drive's usage. */
  driveUsageMs: 5_000,
  /** Waits between attempts to remove a drive; the last value repeats. */
  driveBackoffMs: [1_000, 5_000, 30_000, 60_000, 300_000],
  /**
   * Wait after the first failed standby of an idle sandbox before the next attempt. The wait doubles with each failure.
   */
  standbyRetryMs: 60_000,
  /** Longest wait after a failed standby of an idle sandbox before the next attempt. */
  standbyRetryMaxMs: 3_600_000,
  /** Intervals at which three layers of the cleanup run: stale, age and pressure. */
  sweepStaleMs: 300_000,
  sweepAgeMs: 900_000,
  sweepPressureMs: 60_000,
  /** Used share of capacity above which the pressure layer of the cleanup acts. */
  sweepPressureShare: 0.8,
  /**
   * Minimum idle time of a sandbox that is suspended because of pressure: when more than sweepPressureShare of capacity
   * is used, or in an emergency cleanup.
   */
  pressureIdleMs: 60_000,
  /**
   * Time limit for the pressure layer in one sweep: once this time has passed, the layer starts no more suspensions.
   */
  pressureStandbyMs: 120_000,
  /**
   * Longest timer for a sandbox's expiry, because Node's timers are limited to 24 days. For a later expiry the timer is
   * set again when it fires.
   */
  expiryTimerMaxMs: 86_400_000,
  auditEveryMs: 3_600_000,
  /** How long events are kept. */
  eventRetentionMs: 7 * 86_400_000,
  /**
   * Maximum number of characters of the command line in an `exec.started` event. Text that looks like a secret is
   * removed. With 0, the event contains only the program's name.
   */
  eventCommandChars: 0,
  /** How long the idempotency keys of sandboxes are kept. */
  keyRetentionMs: 86_400_000,
  /** How long the records of deleted sandboxes can be read. */
  goneRetentionMs: 7 * 86_400_000,
  /** Interval at which alerts are evaluated. */
  alertEveryMs: 10_000,
  /** Time for which a value must stay above its threshold before the alert fires. */
  alertForMs: 20_000,
  /** Time for which a value must stay at or below its clearing threshold before the alert clears. */
  alertClearForMs: 30_000,
  /**
   * Thresholds of alerts, in groups. An alert fires above `alert…` and clears at or below `clear…`; `target…` is the
   * desired value.
   */
  alertTimeoutPercent: 5,
  clearTimeoutPercent: 3,
  targetTimeoutPercent: 2,
  /** Length of the window for the timeout rate, which is calculated from the execs that ended in the window. */
  alertWindowMs: 600_000,
  /** Minimum number of execs that ended in the window. With fewer execs, the timeout rate is not evaluated. */
  alertMinExecs: 20,
  /** Number of timeouts of one sandbox within alertWindowMs above which the alert fires. */
  alertRepeatedTimeouts: 3,
  clearRepeatedTimeouts: 1,
  /**
   * Thresholds for the number of active sandboxes and, in alertRunningMs, for how long a sandbox may be awake. Which
   * values are too high depends on the use, so these alerts are off (0) by default. The escalation alert is for more
   * active sandboxes than one operator can look after.
   */
  alertActive: 0,
  clearActive: 15,
  targetActive: 5,
  alertEscalationActive: 0,
  clearEscalationActive: 40,
  alertEscalationForMs: 1_800_000,
  alertRunningMs: 0,
  alertStuckMs: 600_000,
  /** Number of missed rounds after which a periodic job (cleanup, audit, observation) is overdue. */
  alertLateRounds: 2,
  /** Used share of disk, memory or the sandbox limit, in percent, above which the alert fires. */
  alertCapacityPercent: 80,
  clearCapacityPercent: 75,
  /** How long cleared alerts are listed. */
  alertRetentionMs: 7 * 86_400_000,
  /** Deadline of one attempt to deliver a webhook message. */
  deliveryMs: 10_000,
  /**
   * Waits between the attempts to deliver a webhook message. If the attempt after the last wait fails, the delivery is
   * given up, and its state is `dead`.
   */
  deliveryBackoffMs: [5_000, 15_000, 60_000, 300_000, 900_000],
  /** How long the records of deliveries are kept. */
  deliveryRetentionMs: 7 * 86_400_000,
  deliveriesPending: 1_000,
  deliveriesAtOnce: 4,
  /** Size of one file of the server's log on disk. One query reads this much at most. */
  logFileBytes: 16 * 1_048_576,
  /** Number of files of the server's log. */
  logFiles: 4,
  bodyLimitBytes: 1_048_576,
  headerLimitBytes: 16_384,
  httpConnections: 4_096,
  /** How long a caller may take to send the headers of a request. The same limit applies to a JSON body. */
  httpReceiveMs: 30_000,
  /** Maximum time without progress of a streamed request or response body. After it, the body is aborted. */
  httpStallMs: 60_000,
  httpKeepAliveMs: 72_000,
  /** How long a call is held before it is refused, if it arrives while the server recovers its state after a start. */
  startHoldMs: 10_000,
  shutdownMs: 10_000,
} as const satisfies Record<string, number | readonly number[]>;

export type Numbers = {
  readonly [Key in keyof typeof NUMBERS]: (typeof NUMBERS)[Key] extends readonly number[]
    ? readonly number[]
    : number;
};

/** The default resources of a sandbox, for a create request that contains none. */
export const DEFAULT_RESOURCES = { memoryMb: 1024, cpus: 1, pids: 512 } as const;
export const DEFAULT_IMAGE = "host";
/** The user that commands run as, and its home directory. */
export const DEFAULT_USER = { name: "user", uid: 1000, gid: 1000, home: "/home/user" } as const;
