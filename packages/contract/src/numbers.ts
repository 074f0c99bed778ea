/**
 * Every number that an operator can set, with its default. The server accepts a partial `Numbers` and takes the rest
 * from this table.
 */
export const NUMBERS = {
  /** Interval of the link heartbeat, which the server sends and the keeper expects. */
  heartbeatMs: 5_000,
  /** A link that receives no byte for this long is considered dead, even without a FIN. */
  linkDeadMs: 10_000,
  /** First wait before reconnecting a lost link. The wait doubles with each failure. Each wait is randomized. */
  linkRetryMinMs: 2,
  /** Longest wait before reconnecting a lost link. */
  linkRetryMaxMs: 2_000,
  /** A call on a sandbox whose link is down waits this long for a new link. */
  linkWaitMs: 5_000,
  /** Interval between observation passes over all running instances. */
  observeEveryMs: 5_000,
  /** Interval of periodic maintenance: new proofs of degraded sandboxes, storing of activity times, expiry. */
  maintainEveryMs: 5_000,
  /** A call runs a proof of the sandbox first if the last proof is older than this. */
  proofFreshMs: 15_000,
  proofDeadlineMs: 8_000,
  /** Deadline of a create, from its acceptance to the proof that the sandbox is ready. */
  createDeadlineMs: 60_000,
  /** Deadline of one attempt to stop an instance. */
  stopAttemptMs: 45_000,
  /** How long a delete call waits until the instance has been stopped. */
  deleteWaitMs: 30_000,
  /** Waits between stop attempts. After the last attempt the instance is only observed. */
  stopBackoffMs: [5_000, 10_000, 30_000, 60_000, 300_000],
  exhaustedRecheckMs: 600_000,
  /** An orphaned resource is removed after two sightings at least this long apart. */
  orphanGraceMs: 300_000,
  orphanCheckEveryMs: 150_000,
  /** How long the record, files and journals of a failed sandbox are kept. */
  failedKeptMs: 86_400_000,
  execWaitDefaultMs: 240_000,
  execWaitMaxMs: 240_000,
  /** The server ends an exec itself if the keeper has not done so this long after the exec's timeout. */
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
   * Maximum number of ended execs kept per sandbox. Beyond this limit or journalsPerSandboxBytes, the oldest are
   * deleted early.
   */
  execsKeptPerSandbox: 10_000,
  /** Maximum size of the journals of ended execs, per sandbox. */
  journalsPerSandboxBytes: 1_024 * 1_048_576,
  /** Maximum size of the journals of all deleted sandboxes together. Beyond the limit the oldest are deleted early. */
  journalsOfDeletedBytes: 4_096 * 1_048_576,
  /** Maximum size of `stdout` and of `stderr` returned inline by a waiting call. The journal has the rest. */
  execInlineBytes: 1_048_576,
  journalCapBytes: 64 * 1_048_576,
  /**
   * When a command's unread output has reached the cap, the command waits this long for a connected reader that takes
   * no output. After that the oldest output is dropped.
   */
  outputHoldMs: 60_000,
  /** The same wait for a reader that has disconnected, or that was announced and has not connected yet. */
  outputReturnMs: 10_000,
  streamKeepaliveMs: 5_000,
  /** Deadline to connect to a port. */
  portConnectMs: 10_000,
  /** Deadline for the response of the program that listens on a port. */
  portAnswerMs: 300_000,
  /** Interval at which a port's traffic is counted as activity of its sandbox. */
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
   * Maximum duration of an exec's output stream. At its end an active reader reconnects with its cursor. A dead reader
   * does not, and is thereby removed.
   */
  streamMaxMs: 1_800_000,
  /** A keeper without a link ends its sandbox this long after the end of the TTL. */
  keeperExpiryGraceMs: 60_000,
  /** Deadline of a single file, directory or probe request to the keeper. */
  keeperCallMs: 30_000,
  /**
   * Maximum number of file calls per sandbox that run at a time and hold an open file or directory in the keeper. A
   * keeper has 64 places for such calls; the remaining ones are reserved for proofs.
   */
  fileCallsPerSandbox: 48,
  /** Maximum number of queued file calls per sandbox. */
  fileCallsWaiting: 1_000,
  /** How long a file call may stay queued. */
  fileCallWaitMs: 20_000,
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
  /** New sandboxes are rejected while the state directory has less free disk space than this. */
  diskReserveBytes: 2 * 1_073_741_824,
  /** New sandboxes are rejected while the host has less free memory than this. */
  memoryReserveBytes: 268_435_456,
  /** Deadline of a capacity measurement. If the measurement takes longer, the capacity is considered unmeasured. */
  measureMs: 5_000,
  /**
   * While less disk space than this is free, the sandbox that writes fastest is frozen. It stays frozen until
   * diskReserveBytes are free again.
   */
  diskFreezeBytes: 1_073_741_824,
  diskGuardEveryMs: 5_000,
  /** Sandboxes that write slower than this are not frozen: they are not the ones filling the disk. */
  diskFreezeRateBytes: 1_048_576,
  /**
   * Maximum number of consecutive launch failures. When it is reached, launches are suspended for launchesSuspendedMs;
   * then one launch is admitted as a probe.
   */
  launchFailuresMax: 5,
  launchesSuspendedMs: 30_000,
  /**
   * Maximum number of cold starts after lost memory, per sandbox and restartWindowMs. After that the sandbox fails. The
   * window is several times as long as healGiveUpMs.
   */
  restartsMax: 3,
  restartWindowMs: 3_600_000,
  /** Interval at which the recovery ladder is evaluated. */
  healEveryMs: 1_000,
  /** How long an instance may be unresponsive before the first step of the ladder. */
  healAfterMs: 5_000,
  /** Deadline of the proof after a step of the ladder. */
  healTryMs: 10_000,
  /** Maximum number of attempts per step of the ladder. */
  healTriesPerRung: 2,
  /** A step is successful if the sandbox keeps serving for this long after it. */
  healHoldMs: 15_000,
  /**
   * An instance that does not answer for this long is stopped, even if the cause may be a busy host. This time is
   * longer than alertStuckMs, so that the operator is alerted first.
   */
  healGiveUpMs: 660_000,
  /** Maximum number of instances, over all sandboxes, that the ladder stops per minute. */
  healRestartsPerMinute: 3,
  /** A sandbox that was healed this many times within healWindowMs skips all steps except the last. */
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
  /** Maximum calls per sandbox that are held while it wakes or its memory is saved. */
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
  /** Limits on queued changes of one sandbox: decisions, and changes of its mounts, previews, processes and pauses. */
  changesWaiting: 10_000,
  /** Maximum number of queued writes to one exec's stdin. */
  stdinWritesWaiting: 256,
  /** Maximum named checkpoints per sandbox. */
  checkpointsPerSandbox: 16,
  /** Maximum number of queued checkpoint changes of one sandbox. */
  checkpointChangesWaiting: 16,
  /** Maximum number of queued checkpoint copies of all sandboxes; one copy runs at a time. */
  checkpointsWaiting: 1_000,
  maxDrives: 1_000,
  /** Maximum drives mounted per sandbox. */
  mountsPerSandbox: 32,
  /** Deadline of one attempt to create, mount, unmount or remove a drive. */
  driveCallMs: 60_000,
  /** How long a call waits for the measurement of a drive's usage. */
  driveUsageMs: 5_000,
  /** Waits between attempts to remove a drive; the last value repeats. */
  driveBackoffMs: [1_000, 5_000, 30_000, 60_000, 300_000],
  /** First wait before an idle sandbox whose standby failed is suspended again. The wait doubles with each failure. */
  standbyRetryMs: 60_000,
  /** Longest wait before an idle sandbox whose standby failed is suspended again. */
  standbyRetryMaxMs: 3_600_000,
  /** Intervals of the cleanup layers. */
  sweepStaleMs: 300_000,
  sweepAgeMs: 900_000,
  sweepPressureMs: 60_000,
  /** The pressure layer acts while more than this share of capacity is used. */
  sweepPressureShare: 0.8,
  /**
   * If more than sweepPressureShare of capacity is used, or in an emergency cleanup, sandboxes that have been idle for
   * this long are suspended.
   */
  pressureIdleMs: 60_000,
  /** The pressure layer starts no suspension later than this after the beginning of its sweep. */
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
   * Maximum number of characters of the command line in an `exec.started` event. Apparent secrets are removed. 0 means
   * that the event contains only the program's name.
   */
  eventCommandChars: 0,
  /** How long the idempotency keys of sandboxes are kept. */
  keyRetentionMs: 86_400_000,
  /** How long the records of deleted sandboxes can be read. */
  goneRetentionMs: 7 * 86_400_000,
  /** Interval at which alerts are evaluated. */
  alertEveryMs: 10_000,
  /** An alert fires after its value has been above its threshold for this long. */
  alertForMs: 20_000,
  /** An alert clears after its value has been at or below its clearing threshold for this long. */
  alertClearForMs: 30_000,
  /** In each group: the alert fires above `alert…`, clears at or below `clear…`, and `target…` is the desired value. */
  alertTimeoutPercent: 5,
  clearTimeoutPercent: 3,
  targetTimeoutPercent: 2,
  /** The timeout rate is calculated from the execs that ended in this window. */
  alertWindowMs: 600_000,
  /** The timeout rate is not evaluated if fewer execs than this ended in the window. */
  alertMinExecs: 20,
  /** Number of timeouts of one sandbox within alertWindowMs. */
  alertRepeatedTimeouts: 3,
  clearRepeatedTimeouts: 1,
  /**
   * Number of active sandboxes (and, in alertRunningMs, how long a sandbox may be awake). Which values are too high
   * depends on the use, so these alerts are off (0) by default. If they are switched on, an escalation means that there
   * are more active sandboxes than one operator can look after.
   */
  alertActive: 0,
  clearActive: 15,
  targetActive: 5,
  alertEscalationActive: 0,
  clearEscalationActive: 40,
  alertEscalationForMs: 1_800_000,
  alertRunningMs: 0,
  alertStuckMs: 600_000,
  /** A periodic job (cleanup, audit, observation) is overdue after this many missed rounds. */
  alertLateRounds: 2,
  /** Used share of disk, of memory and of the sandbox limit, in percent. */
  alertCapacityPercent: 80,
  clearCapacityPercent: 75,
  /** How long cleared alerts are listed. */
  alertRetentionMs: 7 * 86_400_000,
  /** Deadline of one attempt to deliver a webhook message. */
  deliveryMs: 10_000,
  /**
   * Waits between the attempts to deliver a message. If the attempt after the last wait fails, the delivery is dead.
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
  /** How long a caller may take to send the headers of a request, and how long to send a JSON body. */
  httpReceiveMs: 30_000,
  /** A streamed request or response body without progress for this long is aborted. */
  httpStallMs: 60_000,
  httpKeepAliveMs: 72_000,
  /** How long a call is held if it arrives while the server is still recovering. */
  startHoldMs: 10_000,
  shutdownMs: 10_000,
} as const satisfies Record<string, number | readonly number[]>;

export type Numbers = {
  readonly [Key in keyof typeof NUMBERS]: (typeof NUMBERS)[Key] extends readonly number[]
    ? readonly number[]
    : number;
};

/** The resources of a sandbox whose create request names none. */
export const DEFAULT_RESOURCES = { memoryMb: 1024, cpus: 1, pids: 512 } as const;
export const DEFAULT_IMAGE = "host";
/** The user that commands run as, and its home directory. */
export const DEFAULT_USER = { name: "user", uid: 1000, gid: 1000, home: "/home/user" } as const;
