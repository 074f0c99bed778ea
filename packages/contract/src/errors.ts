import { type Static, Type } from "typebox";
import { Nullable, OneOf } from "./schema.ts";

/** Whether the thing asked for was handed to the sandbox before the error. `unknown` is an honest answer. */
export const Dispatched = OneOf(["yes", "no", "unknown"], {
  description: "whether the request had reached the sandbox when it failed",
});
export type Dispatched = Static<typeof Dispatched>;

interface ErrorSpec {
  readonly status: number;
  readonly retryable: boolean;
  /** What happened, for a person. */
  readonly message: string;
  /** What to do next. */
  readonly hint: string;
}

/**
 * The one registry of errors. 4xx is the caller's, 5xx is ours; 503 means that the same request may simply be sent
 * again. Server, SDK, CLI and docs all read this table.
 */
export const ERRORS = {
  invalid_request: {
    status: 400,
    retryable: false,
    message: "The request is not valid.",
    hint: "Compare it with the schema in /openapi.json; the message names the field.",
  },
  invalid_path: {
    status: 400,
    retryable: false,
    message: "The path is not valid.",
    hint: "Use an absolute path without '..' segments or NUL bytes.",
  },
  bad_cursor: {
    status: 400,
    retryable: false,
    message: "The cursor is not one of this exec.",
    hint: "Cursors belong to the one exec that they came from; read without one to begin at the start.",
  },
  unauthorized: {
    status: 401,
    retryable: false,
    message: "The API key is missing or not known.",
    hint: "Send 'Authorization: Bearer KEY'; on the server's machine the key is in admin.key in its state directory.",
  },
  forbidden_path: {
    status: 403,
    retryable: false,
    message: "That path belongs to Holdfast.",
    hint: "Everything under /.holdfast is the keeper's; choose another path.",
  },
  preview_denied: {
    status: 403,
    retryable: false,
    message: "The preview link is not valid here, has expired, or was taken back.",
    hint: "Ask whoever made it for a new one: POST /v1/sandboxes/:ref/previews.",
  },
  permission_denied: {
    status: 403,
    retryable: false,
    message: "The sandbox's file system refused this.",
    hint: "The path is read-only or protected inside the sandbox; write below the home directory or /tmp.",
  },
  not_found: {
    status: 404,
    retryable: false,
    message: "There is no such route.",
    hint: "The routes are listed at /docs.",
  },
  sandbox_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such sandbox.",
    hint: "A name means a live sandbox; deleted ones are found by id only. 'holdfast ls' lists them.",
  },
  exec_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such exec.",
    hint: "List the sandbox's execs to find the id.",
  },
  process_not_found: {
    status: 404,
    retryable: false,
    message: "The sandbox has no such process.",
    hint: "'holdfast ps' lists the named processes of a sandbox. A process is replaced by the next one of its name.",
  },
  file_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such file or directory in the sandbox.",
    hint: "Check the path with a listing of its parent directory.",
  },
  image_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such image.",
    hint: "'holdfast image ls' lists the images; 'holdfast image import' adds one.",
  },
  delivery_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such delivery.",
    hint: "GET /v1/alerts/deliveries lists those that are kept.",
  },
  preview_not_found: {
    status: 404,
    retryable: false,
    message: "The sandbox has no such preview, or the preview no such token.",
    hint: "List them with GET /v1/sandboxes/:ref/previews.",
  },
  drive_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such drive.",
    hint: "'holdfast drive ls' lists the drives.",
  },
  mount_not_found: {
    status: 404,
    retryable: false,
    message: "Nothing is mounted at that path.",
    hint: "GET …/mounts lists what is mounted in a sandbox, and where.",
  },
  method_not_allowed: {
    status: 405,
    retryable: false,
    message: "That method is not supported here.",
    hint: "The routes are listed at /docs.",
  },
  request_timeout: {
    status: 408,
    retryable: true,
    message: "The request did not arrive in full in time.",
    hint: "Nothing was done about it; send it again.",
  },
  checkpoint_not_found: {
    status: 404,
    retryable: false,
    message: "There is no such checkpoint.",
    hint: "GET …/checkpoints lists those of a sandbox. They go when the sandbox is deleted.",
  },
  drive_exists: {
    status: 409,
    retryable: false,
    message: "There is a drive of that name.",
    hint: "Choose another name, or create with ifExists 'return'.",
  },
  drive_mounted: {
    status: 409,
    retryable: false,
    message: "The drive is mounted in a sandbox.",
    hint: "Unmount it first. With 'force' it is taken from the sandboxes that have it, which are degraded until they give up its path.",
  },
  drive_deleting: {
    status: 409,
    retryable: false,
    message: "The drive is being deleted.",
    hint: "Create another one; the name is free when the delete is done.",
  },
  preview_exists: {
    status: 409,
    retryable: false,
    message: "The sandbox has a preview of that name.",
    hint: "Use that one, remove it, or choose another name.",
  },
  mount_conflict: {
    status: 409,
    retryable: false,
    message: "Something else is mounted there.",
    hint: "Unmount it first, or choose another path. Mounts don't lie within each other.",
  },
  mount_refused: {
    status: 422,
    retryable: false,
    message: "Nothing can be mounted at that path.",
    hint: "Choose a directory of the sandbox's own disk that is no symbolic link, such as /workspace.",
  },
  checkpoint_unusable: {
    status: 409,
    retryable: false,
    message: "The checkpoint can't be used on this host.",
    hint: "'holdfast doctor' says what the host lacks.",
  },
  checkpoint_exists: {
    status: 409,
    retryable: false,
    message: "The sandbox has a checkpoint of that name.",
    hint: "Choose another name, or delete that one first.",
  },
  too_many_checkpoints: {
    status: 409,
    retryable: false,
    message: "The sandbox has as many checkpoints as it may have.",
    hint: "Delete one first. The limit is the server's checkpointsPerSandbox.",
  },
  name_taken: {
    status: 409,
    retryable: false,
    message: "A live sandbox already has that name.",
    hint: 'Pass ifExists: "return" to get the existing one, or choose another name.',
  },
  exec_conflict: {
    status: 409,
    retryable: false,
    message: "That exec id belongs to another command or another sandbox.",
    hint: "Use a fresh id for a new command; the same id only repeats the same command.",
  },
  process_conflict: {
    status: 409,
    retryable: false,
    message: "A process of that name, started differently, is there already.",
    hint: "Stop that one first, or choose another name; the same request again only follows it.",
  },
  process_unsupported: {
    status: 409,
    retryable: false,
    message: "The sandbox was started by an earlier version, which can't start commands again.",
    hint: "'holdfast restart' brings the present version into it; what is in its memory is lost. Or leave out 'restart'.",
  },
  idempotency_conflict: {
    status: 409,
    retryable: false,
    message: "That Idempotency-Key was used for a different request.",
    hint: "Use a fresh key for a different request.",
  },
  no_webhook: {
    status: 409,
    retryable: false,
    message: "There is no webhook that alerts could be delivered to.",
    hint: "Start the server with HOLDFAST_WEBHOOK_URL and a secret; docs/operating.md says how.",
  },
  wrong_state: {
    status: 409,
    retryable: false,
    message: "The sandbox is not in a state that allows this.",
    hint: "The message names the state; get the sandbox to see what is under way.",
  },
  file_conflict: {
    status: 409,
    retryable: false,
    message: "What lies at that path does not allow this.",
    hint: "The message says what is there: a directory where a file is needed, or the other way round.",
  },
  exec_limit: {
    status: 409,
    retryable: false,
    message: "The sandbox has started as many execs as it may.",
    hint: "The limit is its lifecycle.maxExecs; create a new sandbox to go on.",
  },
  pending_cleanup: {
    status: 409,
    retryable: false,
    message: "The sandbox has no readable record; what is left of it is being cleaned up.",
    hint: "The message says when the next attempt is due. Nothing needs to be done; 'holdfast audit' shows it.",
  },
  standby_cancelled: {
    status: 409,
    retryable: true,
    message: "A call came before the sandbox was asleep, so it stays awake.",
    hint: "Ask for standby again when nothing else is using the sandbox.",
  },
  not_on_disk: {
    status: 409,
    retryable: false,
    message: "What lies at that path is there only while the sandbox is awake.",
    hint: "Leave out wake=false: the call then wakes the sandbox.",
  },
  image_in_use: {
    status: 409,
    retryable: false,
    message: "Sandboxes still use that image.",
    hint: "Delete the sandboxes that use it first.",
  },
  sandbox_gone: {
    status: 410,
    retryable: false,
    message: "The sandbox was deleted.",
    hint: "Create a new one.",
  },
  sandbox_failed: {
    status: 410,
    retryable: false,
    message: "The sandbox failed and cannot serve.",
    hint: "Its cause says why; its files are kept, and can be read, until the date shown. 'holdfast restart' starts it again on them; or delete it.",
  },
  output_dropped: {
    status: 410,
    retryable: false,
    message: "The output at that cursor is no longer kept.",
    hint: "Where the error has a floor, that is the first cursor that can be read; else nothing is kept any more.",
  },
  events_dropped: {
    status: 410,
    retryable: false,
    message: "Events behind that cursor are no longer kept.",
    hint: "Go on from the floor, which is the first cursor behind which nothing is missing; what was before it is gone.",
  },
  too_large: {
    status: 413,
    retryable: false,
    message: "The request is larger than allowed.",
    hint: "Send less at once; files have no such limit when streamed with PUT.",
  },
  unsupported_media_type: {
    status: 415,
    retryable: false,
    message: "That content type is not supported here.",
    hint: "Send application/json, or application/octet-stream for files.",
  },
  range_not_satisfiable: {
    status: 416,
    retryable: false,
    message: "The range lies outside the file.",
    hint: "Get the file's size with stat first.",
  },
  image_incapable: {
    status: 422,
    retryable: false,
    message: "The image cannot run commands as a sandbox must.",
    hint: "The message names what is missing; import an image that has it.",
  },
  not_a_file: {
    status: 422,
    retryable: false,
    message: "That path is not a regular file.",
    hint: "Devices, sockets, pipes and directories can't be read or written as files.",
  },
  headers_too_large: {
    status: 431,
    retryable: false,
    message: "The request's headers are too large.",
    hint: "Send headers of at most 16 KiB in all.",
  },
  too_many_sandboxes: {
    status: 429,
    retryable: true,
    message: "The limit on sandboxes is reached.",
    hint: "Delete some, or raise the limit in the server's configuration.",
  },
  low_memory: {
    status: 429,
    retryable: true,
    message: "The host has too little free memory for another sandbox.",
    hint: "The message has the figures. Delete sandboxes, or retry later.",
  },
  too_many_execs: {
    status: 429,
    retryable: true,
    message: "The sandbox has too many execs under way.",
    hint: "Wait for some to end, or cancel them.",
  },
  too_many_processes: {
    status: 429,
    retryable: false,
    message: "The sandbox has as many named processes as it may have.",
    hint: "Stop one first. The limit is the server's processesPerSandbox.",
  },
  too_many_held: {
    status: 429,
    retryable: true,
    message: "Too many calls wait for the sandbox to wake.",
    hint: "Send it again when the others have been answered.",
  },
  too_many_mounts: {
    status: 429,
    retryable: false,
    message: "The sandbox has as many drives as it may have.",
    hint: "Unmount one first, or mount one drive for several purposes with 'subpath'.",
  },
  too_many_watches: {
    status: 429,
    retryable: true,
    message: "Too many directories are being watched.",
    hint: "Watch a smaller tree, or end other watches first.",
  },
  too_many_readers: {
    status: 429,
    retryable: true,
    message: "Too many callers read output or events at once.",
    hint: "Close streams that are no longer needed; every reader can come back later with its cursor.",
  },
  internal: {
    status: 500,
    retryable: false,
    message: "Something went wrong in Holdfast.",
    hint: "Look for the request id in the server's log and report it.",
  },
  too_many_previews: {
    status: 429,
    retryable: false,
    message: "The sandbox has as many previews, or the preview as many tokens, as it may have.",
    hint: "Remove some that are not needed any more.",
  },
  too_many_streams: {
    status: 429,
    retryable: true,
    message: "The sandbox has as many connections to its ports as it may have.",
    hint: "Send it again when some of the others are over.",
  },
  not_supported: {
    status: 501,
    retryable: false,
    message: "Holdfast does not do this.",
    hint: "The message says what. docs/clients.md lists what of other platforms' clients is supported.",
  },
  port_closed: {
    status: 502,
    retryable: true,
    message: "Nothing listens at that port of the sandbox.",
    hint: "Start the server inside, on 127.0.0.1, 0.0.0.0 or ::1, and see that it has not ended: 'holdfast execs'.",
  },
  port_cut: {
    status: 502,
    retryable: true,
    message: "The connection to the port was cut before an answer came.",
    hint: "What listens there ended it, or the sandbox went to sleep; 'dispatched' says whether the request may have taken effect.",
  },
  port_silent: {
    status: 504,
    retryable: true,
    message: "What listens at that port of the sandbox does not answer.",
    hint: "Ask what it is doing: 'holdfast diagnose'.",
  },
  launch_failed: {
    status: 502,
    retryable: true,
    message: "The sandbox could not be started.",
    hint: "The cause says which step failed; 'holdfast doctor' checks the host. The name is free again.",
  },
  proof_failed: {
    status: 502,
    retryable: true,
    message: "The sandbox did not pass its proof.",
    hint: "The cause names the check that failed; verify again or look at its events.",
  },
  sandbox_degraded: {
    status: 503,
    retryable: true,
    message: "The sandbox does not serve right now.",
    hint: "Its cause says what is wrong; retry the same request, or delete the sandbox.",
  },
  drive_degraded: {
    status: 503,
    retryable: true,
    message: "The drive's files are not where they belong.",
    hint: "GET /v1/drives/:name says what is missing. Nothing was written elsewhere instead.",
  },
  mount_failed: {
    status: 503,
    retryable: true,
    message: "The drive could not be mounted.",
    hint: "The cause says why. Nothing is left of the attempt; send it again.",
  },
  link_lost: {
    status: 503,
    retryable: true,
    message: "The link to the sandbox was lost.",
    hint: "It is being re-established; 'dispatched' says whether the request may have taken effect.",
  },
  checkpoint_failed: {
    status: 503,
    retryable: true,
    message: "The checkpoint could not be made, or not be removed; the sandbox goes on and serves.",
    hint: "The cause says why. Of one that could not be made nothing is left.",
  },
  standby_failed: {
    status: 503,
    retryable: true,
    message: "The sandbox could not be put to sleep; it stays awake and serves.",
    hint: "The cause says why. It is tried again by itself where idleness asks for it.",
  },
  wake_timeout: {
    status: 503,
    retryable: true,
    message: "The sandbox has not woken in time.",
    hint: "The wake goes on; send the same request again.",
  },
  launches_suspended: {
    status: 503,
    retryable: true,
    message: "Launches keep failing, so no new ones are tried for a moment.",
    hint: "The cause is that of the last failure; 'holdfast doctor' checks the host. One launch is let through to probe from time to time.",
  },
  starting: {
    status: 503,
    retryable: true,
    message: "The server is still recovering what an earlier one left.",
    hint: "Retry the same request; /readyz says when the server takes work.",
  },
  shutting_down: {
    status: 503,
    retryable: true,
    message: "The server is shutting down.",
    hint: "Retry the same request; sandboxes go on and the next server finds them.",
  },
  capacity: {
    status: 503,
    retryable: true,
    message: "There is no capacity for that right now.",
    hint: "The message has the figures; retry later or delete what is no longer needed.",
  },
  deadline: {
    status: 504,
    retryable: true,
    message: "The operation did not end within its deadline.",
    hint: "It is being cleaned up; the events of the sandbox say how far it came.",
  },
  disk_full: {
    status: 507,
    retryable: true,
    message: "There is no disk space left for that.",
    hint: "Free space in the sandbox or on the host, then retry.",
  },
} as const satisfies Record<string, ErrorSpec>;

export type ErrorCode = keyof typeof ERRORS;
export const ERROR_CODES = Object.keys(ERRORS) as readonly ErrorCode[];

/** Why something is as it is: machine-readable code, sentence for people, and what lay beneath it. */
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
  { description: "what went wrong, outermost first; never with host paths or secrets" },
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
          description: "with output_dropped and events_dropped: the first cursor that can be read from",
        }),
      ),
      cause: Type.Optional(Nullable(Cause)),
    }),
  },
  { $id: "Error", title: "Error" },
);

export interface ErrorDetails {
  /** Replaces the registry's sentence with a more precise one. */
  message?: string;
  dispatched?: Dispatched;
  sandboxId?: string;
  execId?: string;
  operation?: string;
  /** The first cursor that can be read, where an earlier one was asked for. */
  floor?: string;
  /** When trying again can help, where that is known better than by the code. */
  retryAfterMs?: number;
  cause?: unknown;
}

/** The only error that crosses a seam on purpose. Anything else that arrives at the HTTP layer is a bug, and `internal`. */
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

/** The cause chain of anything thrown, bounded, as data. */
export function causeOf(error: unknown, depth = 0): Cause {
  if (!(error instanceof Error)) return { code: "unknown", message: String(error) };
  const code = isHoldfastError(error) ? error.code : "code" in error ? String(error.code) : error.name;
  const cause: Cause = { code, message: error.message };
  if (error.cause !== undefined && error.cause !== null && depth < MAX_CAUSES) {
    cause.cause = causeOf(error.cause, depth + 1);
  }
  return cause;
}
