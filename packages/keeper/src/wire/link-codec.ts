import type { Probe, ProcessInfo } from "@holdfast/engine";
import { type Ask, ask, nothing } from "./ask.ts";
import { PROTOCOL, REQUEST } from "./protocol.ts";
import { type Reader, WireError, type Writer } from "./wire.ts";

/** Who asks. The other side serves only who names it right, with a generation no smaller than it has seen. */
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
/** A process with empty strings. */
const SMALLEST_PROCESS = 41;

/** What came back. All that is sure of another version of the protocol is that its number comes first. */
export type HelloAnswer = { spoken: typeof PROTOCOL; welcome: Welcome } | { spoken: number; welcome: null };

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
  if (!BOOT_ID.test(bootId)) throw new WireError("a boot id that is none");
  if (from.u64() !== greeting.generation) throw new WireError("another generation was greeted back");
  const startedAt = from.u64();
  from.u32();
  return { spoken, welcome: { version, bootId, startedAt } };
}

export const hello = (greeting: Greeting): Ask<HelloAnswer> =>
  ask(
    REQUEST.hello,
    (out) => writeGreeting(out, greeting),
    (from) => readWelcome(from, greeting),
    "urgent",
  );

/** Answered once somebody at the port has. */
export const dial = (greeting: Greeting, port: number): Ask<HelloAnswer> =>
  ask(
    REQUEST.dial,
    (out) => {
      writeGreeting(out, greeting);
      out.u16(port);
    },
    (from) => readWelcome(from, greeting),
  );

export const ping = (nonce: number): Ask<void> =>
  ask(
    REQUEST.ping,
    (out) => out.u64(nonce),
    (from) => {
      if (from.u64() !== nonce) throw new WireError("a ping was answered with another's nonce");
      from.u64();
    },
    "urgent",
  );

export const probe = (): Ask<Probe> =>
  ask(
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

export const processes = (): Ask<ProcessInfo[]> =>
  ask(REQUEST.processes, nothing, (from) => {
    const list: ProcessInfo[] = [];
    for (let count = from.count(SMALLEST_PROCESS); count > 0; count--) list.push(readProcess(from));
    return list;
  });
