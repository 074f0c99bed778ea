import type { Probe, ProcessInfo } from "@holdfast/engine";
import { PROTOCOL, REQUEST } from "./protocol.ts";
import { nothing, type RequestSpec, request } from "./request.ts";
import { type Reader, WireError, type Writer } from "./wire.ts";

/**
 * The caller's identity. The keeper serves only callers that name its sandbox correctly, with a generation that is not
 * smaller than the largest that the keeper has seen.
 */
export interface Greeting {
  installation: string;
  sandbox: string;
  generation: number;
}

export interface Welcome {
  version: string;
  bootId: string;
  startedAt: number;
}

const BOOT_ID = /^[0-9a-f]{32}$/;
/** Minimum size of an encoded process, in which all strings are empty. */
const SMALLEST_PROCESS = 41;

/** The answer to a hello. If the protocol versions differ, only the version number in it is reliable. */
type HelloAnswer = { spoken: typeof PROTOCOL; welcome: Welcome } | { spoken: number; welcome: null };

function writeGreeting(out: Writer, greeting: Greeting): void {
  out.u32(PROTOCOL);
  out.u64(greeting.generation);
  out.str(greeting.installation);
  out.str(greeting.sandbox);
}

function readWelcome(from: Reader, greeting: Greeting): HelloAnswer {
  const spoken = from.u32();
  if (spoken !== PROTOCOL) {
    from.take(from.left);
    return { spoken, welcome: null };
  }
  const version = from.str();
  const bootId = from.str();
  if (!BOOT_ID.test(bootId)) throw new WireError("an invalid boot id");
  if (from.u64() !== greeting.generation) throw new WireError("a greeting with another generation");
  const startedAt = from.u64();
  from.u32();
  return { spoken, welcome: { version, bootId, startedAt } };
}

export const hello = (greeting: Greeting): RequestSpec<HelloAnswer> =>
  request(
    REQUEST.hello,
    (out) => writeGreeting(out, greeting),
    (from) => readWelcome(from, greeting),
    "urgent",
  );

/** Connects to a port. The answer comes once the port has accepted or refused the connection. */
export const dial = (greeting: Greeting, port: number): RequestSpec<HelloAnswer> =>
  request(
    REQUEST.dial,
    (out) => {
      writeGreeting(out, greeting);
      out.u16(port);
    },
    (from) => readWelcome(from, greeting),
  );

export const ping = (nonce: number): RequestSpec<void> =>
  request(
    REQUEST.ping,
    (out) => out.u64(nonce),
    (from) => {
      if (from.u64() !== nonce) throw new WireError("an answer to a ping with another nonce");
      from.u64();
    },
    "urgent",
  );

/**
 * Sets a deadline in milliseconds from now; 0 removes it. If no link is up when it has passed, the keeper ends its
 * sandbox. Pauses and standby do not count.
 */
export const deadline = (remainingMs: number): RequestSpec<void> =>
  request(
    REQUEST.deadline,
    (out) => out.u64(remainingMs),
    () => undefined,
  );

export const probe = (): RequestSpec<Probe> =>
  request(
    REQUEST.probe,
    nothing,
    (from) => ({
      root: { dev: from.name64(), ino: from.name64() },
      livedMs: from.u64(),
      processes: from.u32(),
    }),
    "urgent",
  );

function readProcess(from: Reader): ProcessInfo {
  return {
    pid: from.u32(),
    parent: from.u32(),
    uid: from.u32(),
    state: String.fromCharCode(from.u8()),
    cpuMs: from.u64(),
    rssBytes: from.u64(),
    name: from.str(),
    commandLine: from.str(),
    execId: from.str(),
  };
}

export const processes = (): RequestSpec<ProcessInfo[]> =>
  request(REQUEST.processes, nothing, (from) => {
    const list: ProcessInfo[] = [];
    for (let count = from.count(SMALLEST_PROCESS); count > 0; count--) list.push(readProcess(from));
    return list;
  });
