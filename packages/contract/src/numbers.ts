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
  execsPerSandbox: 256,
  execStartDeadlineMs: 15_000,
  /** Ended execs per sandbox whose journals stay readable; beyond it the oldest are forgotten. */
  execsKept: 1_000,
  /** `stdout` and `stderr` returned inline by a waiting call, each. The journal has the rest. */
  execInlineBytes: 1_048_576,
  journalCapBytes: 64 * 1_048_576,
  streamKeepaliveMs: 5_000,
  /** A single file, directory or probe request to the keeper. */
  keeperCallMs: 30_000,
  /** Waiting lines. */
  launchesAtOnce: 4,
  launchesWaiting: 1_000,
  maxSandboxes: 1_000,
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
