import { type Static, Type } from "typebox";
import { Nullable, OneOf } from "./schema.ts";

/** Whether the request reached the sandbox before the error occurred. `unknown`: the server cannot tell. */
export const Dispatched = OneOf(["yes", "no", "unknown"], {
  description: "whether the request had reached the sandbox when it failed",
});
export type Dispatched = Static<typeof Dispatched>;

interface ErrorSpec {
  readonly status: number;
  readonly retryable: boolean;
  /** Describes what happened, in a sentence for people. */
  readonly message: string;
  /** Describes what the caller can do next. */
  readonly hint: string;
}

/**
 * The only registry of errors, sorted by status and then by code. 4xx errors are caused by the caller, 5xx errors by
 * the server. 503 means that the same request can be sent again unchanged. 507 means that the host or the sandbox is
 * out of disk or memory. 429 means that a limit is reached. If the limit is on calls or commands in progress, the error
 * is `retryable`, because they end by themselves. If the limit is on stored resources, the error is not `retryable`,
 * because they stay until they are deleted. Server, SDK, CLI and docs all read this table.
 */
export const ERRORS = {
  bad_cursor: {
    status: 400,
    retryable: false,
    message: "The cursor does not belong to this exec.",
    hint: "A cursor is valid only for the exec that returned it. Read without a cursor to start from the beginning.",
  },
  invalid_path: {
    status: 400,
    retryable: false,
    message: "The path is not valid.",
    hint: "Use an absolute path without '..' segments or NUL bytes.",
  },
  invalid_request: {
    status: 400,
    retryable: false,
    message: "The request is not valid.",
    hint: "Compare the request with the schema in /openapi.json; the message names the field.",
  },
  unauthorized: {
    status: 401,
    retryable: false,
    message: "The API key is missing or unknown.",
    hint: "Send 'Authorization: Bearer KEY' with a valid key. On the server's machine the CLI and the SDK find the server by themselves.",
  },
  forbidden_path: {
    status: 403,
    retryable: false,
    message: "That path is reserved for Holdfast.",
    hint: "Everything under /.holdfast belongs to the keeper; choose another path.",
  },
  permission_denied: {
    status: 403,
    retryable: false,
    message: "The sandbox's file system denied this operation.",
    hint: "The path is read-only or protected inside the sandbox; write below the home directory or /tmp.",
  },
  preview_denied: {
    status: 403,
    retryable: false,
    message: "The preview link is invalid, expired or revoked.",
    hint: "Request a new link: POST /v1/sandboxes/:ref/previews.",
  },
  checkpoint_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such checkpoint.",
    hint: "GET …/checkpoints lists the checkpoints of a sandbox. They are deleted with the sandbox.",
  },
  delivery_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such delivery.",
    hint: "GET /v1/alerts/deliveries lists the deliveries that are still kept.",
  },
  drive_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such drive.",
    hint: "'holdfast drive ls' lists the drives.",
  },
  exec_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such exec.",
    hint: "List the sandbox's execs to find the id.",
  },
  file_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such file or directory in the sandbox.",
    hint: "List the parent directory to check the path.",
  },
  image_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such image.",
    hint: "'holdfast image ls' lists the images; 'holdfast image import' adds one.",
  },
  mount_not_found: {
    status: 404,
    retryable: false,
    message: "No drive is mounted at that path.",
    hint: "GET …/mounts lists the mounts of a sandbox and their paths.",
  },
  not_found: {
    status: 404,
    retryable: false,
    message: "There is no such route.",
    hint: "The routes are listed at /docs.",
  },
  preview_not_found: {
    status: 404,
    retryable: false,
    message: "The sandbox has no such preview, or the preview has no such token.",
    hint: "GET /v1/sandboxes/:ref/previews lists the previews of a sandbox.",
  },
  process_not_found: {
    status: 404,
    retryable: false,
    message: "The sandbox has no such process.",
    hint: "'holdfast ps' lists the named processes of a sandbox. Starting a process replaces an ended process of the same name.",
  },
  sandbox_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such sandbox.",
    hint: "Names refer to live sandboxes only; a deleted sandbox can be looked up by id. 'holdfast ls' lists the live ones.",
  },
  method_not_allowed: {
    status: 405,
    retryable: false,
    message: "The method is not supported on this route.",
    hint: "The routes are listed at /docs.",
  },
  request_timeout: {
    status: 408,
    retryable: true,
    message: "The request was not received completely in time.",
    hint: "The request was not processed; send it again.",
  },
  backup_running: {
    status: 409,
    retryable: false,
    message: "A backup is already being taken.",
    hint: "Wait for its end: 'holdfast backup' follows it.",
  },
  checkpoint_exists: {
    status: 409,
    retryable: false,
    message: "The sandbox already has a checkpoint with that name.",
    hint: "Choose another name, or delete the existing checkpoint first.",
  },
  checkpoint_unusable: {
    status: 409,
    retryable: false,
    message: "The checkpoint cannot be used on this host.",
    hint: "'holdfast doctor' reports what the host lacks.",
  },
  drive_deleting: {
    status: 409,
    retryable: false,
    message: "The drive is being deleted.",
    hint: "Create a drive with another name; this name is available again when the delete has finished.",
  },
  drive_exists: {
    status: 409,
    retryable: false,
    message: "A drive with that name already exists.",
    hint: "Choose another name, or create with ifExists 'return'.",
  },
  drive_mounted: {
    status: 409,
    retryable: false,
    message: "The drive is mounted in a sandbox.",
    hint: "Unmount it first. With 'force' it is detached from those sandboxes; they stay degraded until the path is unmounted.",
  },
  exec_conflict: {
    status: 409,
    retryable: false,
    message: "That exec id was used for another command or another sandbox.",
    hint: "Use a new id for a new command; the same id only repeats the same command.",
  },
  file_conflict: {
    status: 409,
    retryable: false,
    message: "The existing entry at that path does not allow this operation.",
    hint: "The message names the conflict, such as a directory where a file is needed.",
  },
  idempotency_conflict: {
    status: 409,
    retryable: false,
    message: "That Idempotency-Key was used for a different request.",
    hint: "Use a new key for a different request.",
  },
  image_in_use: {
    status: 409,
    retryable: false,
    message: "The image is used by sandboxes.",
    hint: "Delete the sandboxes that use the image first.",
  },
  mount_conflict: {
    status: 409,
    retryable: false,
    message: "Another drive is mounted at that path.",
    hint: "Unmount it first, or choose another path. Mounts cannot be nested.",
  },
  name_taken: {
    status: 409,
    retryable: false,
    message: "A live sandbox already has that name.",
    hint: 'Pass ifExists: "return" to get the existing sandbox, or choose another name.',
  },
  no_webhook: {
    status: 409,
    retryable: false,
    message: "No webhook is configured for alerts.",
    hint: "Start the server with HOLDFAST_WEBHOOK_URL and a secret, as described in docs/operating.md.",
  },
  not_on_disk: {
    status: 409,
    retryable: false,
    message: "The path exists only while the sandbox is awake.",
    hint: "Send the request without wake=false; it then wakes the sandbox.",
  },
  pending_cleanup: {
    status: 409,
    retryable: false,
    message: "The sandbox has no readable record; its remains are being cleaned up.",
    hint: "No action is needed: the message names the time of the next attempt. 'holdfast audit' shows the progress.",
  },
  preview_exists: {
    status: 409,
    retryable: false,
    message: "The sandbox already has a preview with that name.",
    hint: "Use that preview, delete it, or choose another name.",
  },
  process_conflict: {
    status: 409,
    retryable: false,
    message: "A process with that name is already running with different settings.",
    hint: "Stop that process first, or choose another name. Repeating the identical request returns the running process.",
  },
  process_unsupported: {
    status: 409,
    retryable: false,
    message: "The sandbox runs an earlier version of Holdfast, which cannot restart commands.",
    hint: "Run 'holdfast restart' to upgrade the sandbox (its memory is lost), or start the process without a restart policy.",
  },
  sandbox_busy: {
    status: 409,
    retryable: true,
    message: "Calls on the sandbox are in progress.",
    hint: "The sandbox keeps running. Wait for the calls to end, or cancel the exec that the error names; then try again.",
  },
  standby_cancelled: {
    status: 409,
    retryable: true,
    message: "A call arrived before the sandbox was in standby, so the sandbox stays awake.",
    hint: "Request standby again when no other client is using the sandbox.",
  },
  update_conflict: {
    status: 409,
    retryable: true,
    message: "Other callers keep changing the sandbox.",
    hint: "Nothing was changed. Send the update again.",
  },
  wrong_state: {
    status: 409,
    retryable: false,
    message: "The sandbox's state does not allow this operation.",
    hint: "The message names the state. Get the sandbox to see which operation is in progress.",
  },
  events_dropped: {
    status: 410,
    retryable: false,
    message: "The events after that cursor are no longer complete.",
    hint: "Resume from `floor`, the oldest cursor still available. Earlier events were deleted.",
  },
  output_dropped: {
    status: 410,
    retryable: false,
    message: "The output at that cursor is no longer kept.",
    hint: "If the error has a floor, read from there: it is the oldest cursor still available. Without a floor no output is kept.",
  },
  sandbox_failed: {
    status: 410,
    retryable: false,
    message: "The sandbox has failed and cannot serve requests.",
    hint: "The sandbox's cause explains the failure, and says if its files are missing. Otherwise they can be read until `keptUntil`, and 'holdfast restart' starts the sandbox again on them. A sandbox that was never ready has no files: create it again.",
  },
  sandbox_gone: {
    status: 410,
    retryable: false,
    message: "The sandbox was deleted.",
    hint: "Create a new sandbox.",
  },
  too_large: {
    status: 413,
    retryable: false,
    message: "The request is larger than allowed.",
    hint: "Send less data per request. Files streamed with PUT have no such limit.",
  },
  unsupported_media_type: {
    status: 415,
    retryable: false,
    message: "The content type is not supported on this route.",
    hint: "Send application/json, or application/octet-stream for files.",
  },
  range_not_satisfiable: {
    status: 416,
    retryable: false,
    message: "The range is outside the file.",
    hint: "Get the file's size with stat first.",
  },
  image_incapable: {
    status: 422,
    retryable: false,
    message: "The image lacks what a sandbox needs to run commands.",
    hint: "The message names the missing part; import an image that has it.",
  },
  mount_refused: {
    status: 422,
    retryable: false,
    message: "A drive cannot be mounted at that path.",
    hint: "Choose a directory on the sandbox's own disk that is not a symbolic link, such as /workspace.",
  },
  not_a_file: {
    status: 422,
    retryable: false,
    message: "The path is not a regular file.",
    hint: "Devices, sockets, pipes and directories cannot be read or written as files.",
  },
  exec_limit: {
    status: 429,
    retryable: false,
    message: "The sandbox has reached its limit of started execs.",
    hint: "The limit is the sandbox's lifecycle.maxExecs. Raise it, or create a new sandbox.",
  },
  too_many_checkpoints: {
    status: 429,
    retryable: false,
    message: "The sandbox has reached its limit of checkpoints.",
    hint: "Delete a checkpoint first. The server setting checkpointsPerSandbox is the limit.",
  },
  too_many_drives: {
    status: 429,
    retryable: false,
    message: "The limit of drives is reached.",
    hint: "Delete a drive first. The server setting maxDrives is the limit.",
  },
  too_many_execs: {
    status: 429,
    retryable: true,
    message: "The sandbox has too many execs in progress.",
    hint: "Wait for some execs to end, or cancel them.",
  },
  too_many_file_calls: {
    status: 429,
    retryable: true,
    message: "The sandbox has too many file calls in progress.",
    hint: "Try again when some of the other file calls have ended.",
  },
  too_many_held: {
    status: 429,
    retryable: true,
    message: "Too many calls are waiting for the sandbox.",
    hint: "Send the request again when the other calls have been answered.",
  },
  too_many_mounts: {
    status: 429,
    retryable: false,
    message: "The sandbox has reached its limit of mounted drives.",
    hint: "Unmount a drive first, or mount parts of one drive with 'subpath'.",
  },
  too_many_previews: {
    status: 429,
    retryable: false,
    message: "The sandbox has reached its limit of previews, or the preview its limit of tokens.",
    hint: "Delete previews or tokens that are no longer needed.",
  },
  too_many_processes: {
    status: 429,
    retryable: false,
    message: "The sandbox has reached its limit of named processes.",
    hint: "Stop a process first. The server setting processesPerSandbox is the limit.",
  },
  too_many_readers: {
    status: 429,
    retryable: true,
    message: "Too many callers are reading output or events.",
    hint: "Close streams that are no longer needed. A reader can resume later with its cursor.",
  },
  too_many_sandboxes: {
    status: 429,
    retryable: false,
    message: "The limit of sandboxes is reached.",
    hint: "Delete some sandboxes, or raise the limit in the server's configuration.",
  },
  too_many_streams: {
    status: 429,
    retryable: true,
    message: "The sandbox has reached its limit of connections to its ports.",
    hint: "Send the request again when some of the connections have closed.",
  },
  too_many_watches: {
    status: 429,
    retryable: true,
    message: "Too many directories are being watched.",
    hint: "Watch a smaller tree, or end other watches first.",
  },
  headers_too_large: {
    status: 431,
    retryable: false,
    message: "The request's headers are too large.",
    hint: "Send headers of at most 16 KiB in total.",
  },
  internal: {
    status: 500,
    retryable: false,
    message: "An internal error occurred in Holdfast.",
    hint: "Look up the request id in the server's log and report it.",
  },
  not_supported: {
    status: 501,
    retryable: false,
    message: "Holdfast does not support this.",
    hint: "The message names the unsupported part. docs/clients.md lists the supported parts of other platforms' clients.",
  },
  launch_failed: {
    status: 502,
    retryable: true,
    message: "The sandbox could not be started.",
    hint: "The cause names the step that failed; 'holdfast doctor' checks the host. The sandbox's name is available again.",
  },
  port_closed: {
    status: 502,
    retryable: true,
    message: "No program is listening on that port of the sandbox.",
    hint: "Start the server inside the sandbox on 127.0.0.1, 0.0.0.0 or ::1, and check with 'holdfast execs' that it is still running.",
  },
  port_cut: {
    status: 502,
    retryable: true,
    message: "The connection to the port was closed before a response arrived.",
    hint: "The program on that port closed the connection, or the sandbox went to standby. 'dispatched' reports whether the request may have taken effect.",
  },
  proof_failed: {
    status: 502,
    retryable: true,
    message: "The sandbox did not pass its proof.",
    hint: "The cause names the check that failed. Verify the sandbox again, or look at its events.",
  },
  system_error: {
    status: 502,
    retryable: false,
    message: "The kernel of the host refused an operation in the sandbox.",
    hint: "The message quotes the kernel's error. Look at the sandbox's disk and drives with 'holdfast diagnose'.",
  },
  capacity: {
    status: 503,
    retryable: true,
    message: "There is no capacity for this request right now.",
    hint: "The message has the figures. Retry later, or delete resources that are no longer needed.",
  },
  checkpoint_failed: {
    status: 503,
    retryable: true,
    message: "The checkpoint could not be created or deleted. The sandbox is still running.",
    hint: "The cause explains why. A checkpoint that could not be created leaves nothing on disk.",
  },
  drive_degraded: {
    status: 503,
    retryable: true,
    message: "The drive's files are missing from their place on the host.",
    hint: "GET /v1/drives/:name reports what is missing. Nothing was written to another place instead.",
  },
  launches_suspended: {
    status: 503,
    retryable: true,
    message: "Launches keep failing, so new launches are suspended for a moment.",
    hint: "The cause is that of the last failed launch; 'holdfast doctor' checks the host. A single launch is admitted from time to time as a probe.",
  },
  link_lost: {
    status: 503,
    retryable: true,
    message: "The connection to the sandbox was lost.",
    hint: "The connection is being re-established. 'dispatched' reports whether the request may have taken effect.",
  },
  mount_failed: {
    status: 503,
    retryable: true,
    message: "The drive could not be mounted.",
    hint: "The cause explains why. The attempt was rolled back; send the request again.",
  },
  sandbox_degraded: {
    status: 503,
    retryable: true,
    message: "The sandbox is not serving requests right now.",
    hint: "The sandbox's cause explains why, and says if waiting can't help. Otherwise retry the same request, or delete the sandbox.",
  },
  shutting_down: {
    status: 503,
    retryable: true,
    message: "The server is shutting down.",
    hint: "Retry the same request. Sandboxes keep running, and the next server adopts them.",
  },
  standby_failed: {
    status: 503,
    retryable: true,
    message: "The sandbox could not be put in standby. It is still running.",
    hint: "The cause explains why. Standby because of idleness is retried automatically.",
  },
  starting: {
    status: 503,
    retryable: true,
    message: "The server is still recovering the sandboxes of the previous server.",
    hint: "Retry the same request; /readyz reports when the server accepts work.",
  },
  wake_failed: {
    status: 503,
    retryable: true,
    message: "The sandbox could not be woken.",
    hint: "The cause explains why. The sandbox is still in standby; send the same request again.",
  },
  wake_timeout: {
    status: 503,
    retryable: true,
    message: "The sandbox did not wake in time.",
    hint: "The wake is still in progress; send the same request again.",
  },
  deadline: {
    status: 504,
    retryable: true,
    message: "The operation did not finish within its deadline.",
    hint: "The operation is being cleaned up; the sandbox's events show how far it got.",
  },
  port_silent: {
    status: 504,
    retryable: true,
    message: "The program on that port of the sandbox does not respond.",
    hint: "Run 'holdfast diagnose' to see what the sandbox is doing.",
  },
  disk_full: {
    status: 507,
    retryable: true,
    message: "There is not enough disk space.",
    hint: "Free space in the sandbox or on the host, then retry.",
  },
  low_memory: {
    status: 507,
    retryable: true,
    message: "The host has too little free memory for another sandbox.",
    hint: "The message has the figures. Delete sandboxes, or retry later.",
  },
} as const satisfies Record<string, ErrorSpec>;

export type ErrorCode = keyof typeof ERRORS;
export const ERROR_CODES = Object.keys(ERRORS) as readonly ErrorCode[];

/** The reason for a state or a failure: a machine-readable code, a sentence for people, and the underlying cause. */
export interface Cause {
  code: string;
  message: string;
  cause?: Cause;
}

export const Cause = Type.Cyclic(
  {
    Cause: Type.Object({
      code: Type.String(),
      message: Type.String(),
      cause: Type.Optional(Type.Ref("Cause")),
    }),
  },
  "Cause",
  { description: "the cause chain, outermost first; never contains host paths or secrets" },
);

export const ErrorBody = Type.Object(
  {
    error: Type.Object({
      code: OneOf(ERROR_CODES),
      message: Type.String(),
      hint: Type.String(),
      retryable: Type.Boolean(),
      dispatched: Dispatched,
      requestId: Type.String(),
      sandboxId: Type.Optional(Type.String()),
      execId: Type.Optional(Type.String()),
      operation: Type.Optional(Type.String()),
      floor: Type.Optional(
        Type.String({
          description: "with output_dropped and events_dropped: the oldest cursor still available",
        }),
      ),
      cause: Type.Optional(Nullable(Cause)),
    }),
  },
  { $id: "Error", title: "Error" },
);

interface ErrorDetails {
  /** A more precise sentence, used in place of the default sentence of the error registry. */
  message?: string;
  dispatched?: Dispatched;
  sandboxId?: string;
  execId?: string;
  operation?: string;
  /** The oldest cursor that is still available. It is set if an older cursor was requested. */
  floor?: string;
  /** How long to wait before a retry, if this error knows it more precisely than the registry's default. */
  retryAfterMs?: number;
  cause?: unknown;
}

/**
 * The only error that crosses a package boundary on purpose. Any other error is a bug, and the HTTP layer reports it as
 * `internal`.
 */
export class HoldfastError extends Error {
  readonly code: ErrorCode;
  readonly dispatched: Dispatched;
  readonly sandboxId: string | undefined;
  readonly execId: string | undefined;
  readonly operation: string | undefined;
  readonly floor: string | undefined;
  readonly retryAfterMs: number | undefined;

  constructor(code: ErrorCode, details: ErrorDetails = {}) {
    super(
      details.message ?? ERRORS[code].message,
      details.cause === undefined ? {} : { cause: details.cause },
    );
    this.name = "HoldfastError";
    this.code = code;
    this.dispatched = details.dispatched ?? "no";
    this.sandboxId = details.sandboxId;
    this.execId = details.execId;
    this.operation = details.operation;
    this.floor = details.floor;
    this.retryAfterMs = details.retryAfterMs;
  }

  get status(): number {
    return ERRORS[this.code].status;
  }
  get retryable(): boolean {
    return ERRORS[this.code].retryable;
  }
  get hint(): string {
    return ERRORS[this.code].hint;
  }
}

export const isHoldfastError = (error: unknown): error is HoldfastError => error instanceof HoldfastError;

const MAX_CAUSES = 5;

/** Converts any thrown value and its causes to data, at most `MAX_CAUSES` deep. */
export function causeOf(error: unknown, depth = 0): Cause {
  if (!(error instanceof Error)) return { code: "unknown", message: String(error) };
  const code = isHoldfastError(error) ? error.code : "code" in error ? String(error.code) : error.name;
  const cause: Cause = { code, message: error.message };
  if (error.cause !== undefined && error.cause !== null && depth < MAX_CAUSES) {
    cause.cause = causeOf(error.cause, depth + 1);
  }
  return cause;
}
