/**
 * Every default that has a number, in one place. All of them are configuration: the server takes a partial
 * `Numbers` and fills in the rest from here.
 */
export const NUMBERS = {
  /** Link heartbeat, sent by the server and expected by the keeper. */
  heartbeatMs: 5_000,
  /** A link without one byte for this long is dead, FIN or no FIN. */
  linkDeadMs: 10_000,
  /** Reconnects of a lost link: first wait, longest wait. Jitter is added. */
  linkRetryMinMs: 2,
  linkRetryMaxMs: 2_000,
  /** A call on a sandbox whose link is down waits this long for the next one. */
  linkWaitMs: 5_000,
  /** One pass over all running instances. */
  observeEveryMs: 5_000,
  /** Small duties: another proof for what is degraded, activity to the store, what is past its time. */
  maintainEveryMs: 5_000,
  /** A call after this long without a proof is preceded by one. */
  proofFreshMs: 15_000,
  proofDeadlineMs: 8_000,
  /** From accepted to proven ready. */
  createDeadlineMs: 60_000,
  /** One try at stopping an instance, and what a caller of delete waits for it. */
  stopAttemptMs: 45_000,
  deleteWaitMs: 30_000,
  /** Waits between tries at stopping. After the last, the lease is exhausted and only re-observed. */
  stopBackoffMs: [5_000, 10_000, 30_000, 60_000, 300_000],
  exhaustedRecheckMs: 600_000,
  /** An unowned thing is removed once seen twice, at least this long apart. */
  orphanGraceMs: 300_000,
  orphanCheckEveryMs: 150_000,
  /** How long the record, files and journals of a failed sandbox are kept. */
  failedKeptMs: 86_400_000,
  /** Execs. */
  execWaitDefaultMs: 240_000,
  execWaitMaxMs: 240_000,
  /** A timeout beyond the keeper's own, after which the server ends the exec itself. */
  execTimeoutGraceMs: 10_000,
  /** Execs of one sandbox that run at a time, those that wait for their turn, and how long they may wait. */
  execsPerSandbox: 256,
  execsQueuedPerSandbox: 1_000,
  execQueueMs: 600_000,
  execStartDeadlineMs: 15_000,
  /** Named processes of one sandbox, those that are over included: beyond it the one that ended first makes room. */
  processesPerSandbox: 64,
  /** Looks for readiness: the first wait between two, the longest, and that after it was not ready in time. */
  readyPollMinMs: 50,
  readyPollMaxMs: 1_000,
  unreadyPollMs: 5_000,
  /** One try at a port. */
  readyDialMs: 2_000,
  /** Ended execs that a keeper has in memory; the journals of older ones are read from the disk. */
  execsInKeeper: 1_000,
  /** How long after its end an exec's id stays valid and its output readable, deleted sandbox or not. */
  execRetentionMs: 3_600_000,
  retentionEveryMs: 30_000,
  /** Ended execs, and bytes of their journals, kept per sandbox; beyond either the oldest go before their time. */
  execsKeptPerSandbox: 10_000,
  journalsPerSandboxBytes: 1_024 * 1_048_576,
  /** Bytes of journals kept of all deleted sandboxes together; beyond it the oldest go before their time. */
  journalsOfDeletedBytes: 4_096 * 1_048_576,
  /** `stdout` and `stderr` returned inline by a waiting call, each. The journal has the rest. */
  execInlineBytes: 1_048_576,
  journalCapBytes: 64 * 1_048_576,
  streamKeepaliveMs: 5_000,
  /** Ports: how long a connection may take, how long what listens may take to answer a request, and how often traffic counts as use. */
  portConnectMs: 10_000,
  portAnswerMs: 300_000,
  portTouchEveryMs: 1_000,
  /** Previews of one sandbox, tokens of one preview, and how long a token is good for unless it is said. */
  previewsPerSandbox: 100,
  tokensPerPreview: 100,
  previewTokenMs: 86_400_000,
  /** Callers that read output at the same time: of one exec, and in all. */
  readersPerExec: 64,
  readersMax: 2_000,
  /** Callers that follow the timeline at the same time. */
  eventFollowersMax: 200,
  /** A stream that follows an exec lasts no longer; its reader comes back with its cursor, a dead one does not. */
  streamMaxMs: 1_800_000,
  /** A single file, directory or probe request to the keeper. */
  keeperCallMs: 30_000,
  /** Waiting lines. */
  launchesAtOnce: 4,
  launchesWaiting: 1_000,
  /** How long a create may wait for its turn, before its own deadline begins. */
  launchQueueMs: 300_000,
  maxSandboxes: 1_000,
  maxSandboxesPerKey: 1_000,
  /** No sandbox is launched below these, of the disk that holds the state directory and of the host's memory. */
  diskReserveBytes: 2 * 1_073_741_824,
  memoryReserveBytes: 268_435_456,
  /** What can't be measured in this time counts as unmeasurable. */
  measureMs: 5_000,
  /** Below this much free disk the sandbox that writes fastest is frozen, until the reserve is free again. */
  diskFreezeBytes: 1_073_741_824,
  diskGuardEveryMs: 5_000,
  /** A slower writer is not what fills the disk. */
  diskFreezeRateBytes: 1_048_576,
  /** So many launches that fail in a row suspend launching for a while; then one is let through as a probe. */
  launchFailuresMax: 5,
  launchesSuspendedMs: 30_000,
  /** Cold starts after lost memory: at most so many within the window, several times healGiveUpMs, then the sandbox fails. */
  restartsMax: 3,
  restartWindowMs: 3_600_000,
  /** The ladder of recovery: how often it is looked at, and how long an instance may not serve before a step is taken. */
  healEveryMs: 1_000,
  healAfterMs: 5_000,
  /** How long a step has to bring a proof, how often each is tried, and how long the proof must hold for it to count. */
  healTryMs: 10_000,
  healTriesPerRung: 2,
  healHoldMs: 15_000,
  /**
   * Without an answer for this long an instance is ended, even where a busy host may be to blame. Longer than alertStuckMs, so
   * that a person has heard of it by then.
   */
  healGiveUpMs: 660_000,
  /** The ladder ends no more instances than this in a minute, of all sandboxes together. */
  healRestartsPerMinute: 3,
  /** A sandbox that had to be healed more often than this within the window goes to the last step at once. */
  healsMax: 5,
  healWindowMs: 600_000,
  /** Figures that are kept of each instance, one per observation pass. */
  usageSamples: 60,
  /** How long a diagnosis looks, unless it is told otherwise, and at most. */
  diagnosisWindowMs: 3_000,
  diagnosisWindowMaxMs: 10_000,
  /** Sandboxes that are diagnosed at a time; who asks for the same one shares it. */
  diagnosesAtOnce: 4,
  /** One try at writing memory to disk, and from the order to wake to proven ready. Callers are held that long. */
  standbyDeadlineMs: 120_000,
  wakeDeadlineMs: 30_000,
  /** How long freezing or thawing may take. */
  freezeMs: 5_000,
  /** Calls of one sandbox that are held while it wakes or its memory is written. */
  heldPerSandbox: 256,
  /** Memory is written and restored for so many sandboxes at a time. */
  standbysAtOnce: 2,
  wakesAtOnce: 4,
  /** Checkpoints by name that one sandbox may have at a time. */
  checkpointsPerSandbox: 16,
  maxDrives: 1_000,
  /** Drives that one sandbox may have at a time. */
  mountsPerSandbox: 32,
  /** One try at making, mounting, unmounting or removing a drive. */
  driveCallMs: 60_000,
  /** What a caller waits for the size of a drive. */
  driveUsageMs: 5_000,
  /** Waits between tries at removing a drive; the last one again and again. */
  driveBackoffMs: [1_000, 5_000, 30_000, 60_000, 300_000],
  /** After a standby that failed, the next one by idleness waits this long, twice as long each time, up to the longest. */
  standbyRetryMs: 60_000,
  standbyRetryMaxMs: 3_600_000,
  /** The layers of cleaning. */
  sweepStaleMs: 300_000,
  sweepAgeMs: 900_000,
  sweepPressureMs: 60_000,
  sweepPressureShare: 0.8,
  /** Above that share, or by order of an emergency, what nobody has used for this long is put to standby; none is begun after the second. */
  pressureIdleMs: 60_000,
  pressureStandbyMs: 120_000,
  auditEveryMs: 3_600_000,
  /** Events, and idempotency keys of sandboxes, are forgotten after this. */
  eventRetentionMs: 7 * 86_400_000,
  keyRetentionMs: 86_400_000,
  /** Records of deleted sandboxes can be asked for this long. */
  goneRetentionMs: 7 * 86_400_000,
  /** Alerts: how often they are evaluated, and how long a figure must be past its threshold, or back, to count. */
  alertEveryMs: 10_000,
  alertForMs: 20_000,
  alertClearForMs: 30_000,
  /** Of each: above the first it fires, at or below the second it clears, the third is what it should be. */
  alertTimeoutPercent: 5,
  clearTimeoutPercent: 3,
  targetTimeoutPercent: 2,
  /** Timeouts are counted among execs that ended in this window, and say nothing where fewer ended. */
  alertWindowMs: 600_000,
  alertMinExecs: 20,
  /** Timeouts of one sandbox in the window. */
  alertRepeatedTimeouts: 3,
  clearRepeatedTimeouts: 1,
  alertActive: 20,
  clearActive: 15,
  targetActive: 5,
  /** So many for so long is past what one person can look after. */
  alertEscalationActive: 50,
  clearEscalationActive: 40,
  alertEscalationForMs: 1_800_000,
  alertRunningMs: 300_000,
  alertStuckMs: 600_000,
  /** What has a pace, such as cleaning, audits and observation, is overdue after so many rounds. */
  alertLateRounds: 2,
  /** Of disk, memory and places for sandboxes that are in use: in percent. */
  alertCapacityPercent: 80,
  clearCapacityPercent: 75,
  /** Alerts that have cleared are listed this long. */
  alertRetentionMs: 7 * 86_400_000,
  /** Deliveries to the webhook: one try, the waits between tries (then it is dead), how long they are kept. */
  deliveryMs: 10_000,
  deliveryBackoffMs: [5_000, 15_000, 60_000, 300_000, 900_000],
  deliveryRetentionMs: 7 * 86_400_000,
  deliveriesPending: 1_000,
  deliveriesAtOnce: 4,
  /** Lines of the server's log that are kept on disk, and how much of them one question reads. */
  logFileBytes: 16 * 1_048_576,
  logFiles: 4,
  /** HTTP. */
  bodyLimitBytes: 1_048_576,
  headerLimitBytes: 16_384,
  httpConnections: 4_096,
  /** A caller has this long to send its headers, and a JSON body. */
  httpReceiveMs: 30_000,
  /** A streamed body, in or out, on which nothing moves for this long is given up. */
  httpStallMs: 60_000,
  httpKeepAliveMs: 72_000,
  /** A call that comes while the server still recovers is held this long. */
  startHoldMs: 10_000,
  shutdownMs: 10_000,
} as const satisfies Record<string, number | readonly number[]>;

export type Numbers = {
  readonly [Key in keyof typeof NUMBERS]: (typeof NUMBERS)[Key] extends readonly number[]
    ? readonly number[]
    : number;
};

/** What a sandbox gets where its creator said nothing. */
export const DEFAULT_RESOURCES = { memoryMb: 1024, cpus: 1, pids: 512 } as const;
export const DEFAULT_IMAGE = "host";
/** The user that commands run as, and its home. */
export const DEFAULT_USER = { name: "user", uid: 1000, gid: 1000, home: "/home/user" } as const;
