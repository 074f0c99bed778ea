import {
  HoldfastError,
  normalisePath,
  type OnWake,
  PROCESS_ID_PREFIX,
  type StartExec,
} from "@holdfast/contract";
import { PROOF_EXEC_PREFIX } from "../launch/prover.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { signalNumber } from "../model/exec-outcome.ts";
import type { Idempotency } from "../ports/index.ts";
import type { ExecSpec } from "../ports/records.ts";

/**
 * Maximum total size of argv and environment in bytes. It is the keeper's limit without the strings that the keeper
 * adds.
 */
const STRINGS_MAX = 1_000_000;

/** Builds the spec of the requested command with the sandbox's defaults filled in, and rejects invalid commands. */
export function specOf(input: StartExec, live: LiveSandbox): ExecSpec {
  const { spec } = live.record;
  if ((input.command === undefined) === (input.argv === undefined)) {
    throw new HoldfastError("invalid_request", {
      sandboxId: live.id,
      message: "Give either command or argv.",
    });
  }
  const argv = input.argv ?? ["/bin/sh", "-c", input.command ?? ""];
  const cwd = input.cwd ?? spec.cwd;
  const path = cwd === null ? "" : normalisePath(cwd);
  if (path === null)
    throw new HoldfastError("invalid_path", {
      sandboxId: live.id,
      message: "cwd must be an absolute path without '..'.",
    });
  const own = [PROOF_EXEC_PREFIX, PROCESS_ID_PREFIX].find((prefix) => input.id?.startsWith(prefix));
  if (own !== undefined) {
    const message = `Ids that begin with ${own} are Holdfast's own.`;
    throw new HoldfastError("invalid_request", { sandboxId: live.id, message });
  }
  if (argv.some((arg) => arg.includes("\0"))) {
    throw new HoldfastError("invalid_request", {
      sandboxId: live.id,
      message: "Arguments can't contain NUL.",
    });
  }
  const env = { PATH: DEFAULT_PATH, LANG: "C.UTF-8", ...spec.env, ...input.env };
  const texts = [...argv, ...Object.entries(env).flat()];
  const size = texts.reduce((total, text) => total + Buffer.byteLength(text) + 1, 0);
  if (size > STRINGS_MAX) {
    const message = `Arguments and environment, the sandbox's included, have ${size} bytes; the limit is ${STRINGS_MAX}.`;
    throw new HoldfastError("too_large", { sandboxId: live.id, message });
  }
  const tty = input.tty ?? null;
  return {
    argv,
    env,
    cwd: path,
    user: input.user ?? "",
    timeoutMs: timeoutOf(input, spec.lifecycle.maxExecMs),
    stdin: stdinOf(input),
    tty,
    keepAwake: input.keepAwake ?? true,
    onWake: onWakeOf(input, live),
  };
}

function onWakeOf({ onWake }: StartExec, live: LiveSandbox): OnWake | null {
  if (onWake === undefined) return null;
  if ("signal" in onWake && signalNumber(onWake.signal) === null) {
    const message = `There is no signal ${onWake.signal}.`;
    throw new HoldfastError("invalid_request", { sandboxId: live.id, message });
  }
  if ("argv" in onWake && onWake.argv.some((arg) => arg.includes("\0"))) {
    throw new HoldfastError("invalid_request", {
      sandboxId: live.id,
      message: "Arguments can't contain NUL.",
    });
  }
  return onWake;
}

/**
 * Decides what follows the given stdin text. A terminal's stdin stays open. Otherwise stdin ends after the text, unless
 * `openStdin` is set.
 */
function stdinOf({ stdin, openStdin, tty }: StartExec): ExecSpec["stdin"] {
  if (stdin === undefined && !openStdin && tty === undefined) return null;
  return { text: stdin ?? "", end: stdin !== undefined && !openStdin };
}

const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const timeoutOf = (input: StartExec, most: number | undefined): number | null =>
  most === undefined ? (input.timeoutMs ?? null) : Math.min(input.timeoutMs ?? most, most);

export const idempotencyOf = (
  key: string | undefined,
  live: LiveSandbox,
  fingerprint: string,
): Idempotency | undefined =>
  key === undefined ? undefined : { scope: `exec:${live.id}`, key, fingerprint };
