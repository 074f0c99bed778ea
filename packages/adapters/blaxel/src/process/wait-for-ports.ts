import { setTimeout as sleep } from "node:timers/promises";
import { type Exec, HoldfastError, isHoldfastError, isTerminal } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";

/** The kernel's tables of the sockets in the sandbox's network. */
const TABLES = ["/proc/net/tcp", "/proc/net/tcp6"] as const;
const LISTEN = "0A";
const LOOK_EVERY_MS = 200;
/** Maximum wait for the ports. It is shorter than the timeouts of proxies and clients. */
const LISTENING_MS = 50_000;

/**
 * Resolves when a program listens on each of the ports, according to the kernel's tables, or when the process has
 * ended.
 */
export async function untilListening(
  { files, execs }: EngineApi,
  { id, sandboxId }: Exec,
  ports: readonly number[],
  signal: AbortSignal,
): Promise<void> {
  const end = Date.now() + LISTENING_MS;
  for (;;) {
    const tables = await Promise.all(TABLES.map((path) => textOf(path)));
    const open = new Set(tables.flatMap(portsIn));
    const missing = ports.filter((port) => !open.has(port));
    if (missing.length === 0 || isTerminal((await execs.get(id)).status)) return;
    if (Date.now() >= end) {
      const message = `No program listens on port ${missing.join(", ")} after ${LISTENING_MS / 1_000} s. The process keeps running.`;
      throw new HoldfastError("deadline", { sandboxId, execId: id, dispatched: "yes", message });
    }
    await sleep(LOOK_EVERY_MS, undefined, { signal }).catch(() => signal.throwIfAborted());
  }

  async function textOf(path: string): Promise<string> {
    try {
      const options = { wake: true, offset: 0, length: null };
      const { body } = await files.read(sandboxId, path, options, signal);
      return Buffer.concat(await Array.fromAsync(body)).toString("latin1");
    } catch (error) {
      // If the table of IPv6 sockets does not exist, the kernel has no IPv6.
      if (isHoldfastError(error) && error.code === "file_not_found") return "";
      throw error;
    }
  }
}

function portsIn(table: string): number[] {
  return table.split("\n").flatMap((row) => {
    const [, local, , state] = row.trim().split(/\s+/);
    const port = local?.split(":")[1];
    return state === LISTEN && port !== undefined ? [Number.parseInt(port, 16)] : [];
  });
}
