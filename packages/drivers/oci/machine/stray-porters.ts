import type { Clock, Log } from "@holdfast/engine";
import { isGone } from "./errno.ts";
import type { Layout } from "./layout.ts";
import { allPids, type ProcessStat, readExecutable, readLiving, readParent } from "./processes.ts";

const ENDED_MS = 2_000;
const POLL_MS = 2;

interface Stray extends ProcessStat {
  pid: number;
}

/**
 * Ends the porters that a killed server left. A porter ends with whoever started it, but for one that was stopped before it
 * could ask for that: it would stay for ever, or go on some day and mount what was removed long ago. Porters carry no
 * marker; that they run a binary of this state directory, which has one server at a time, is enough. Those that this server
 * started itself, or that one of them started, are its own. One that hangs in the kernel can't be waited for.
 */
export async function endStrayPorters(layout: Layout, clock: Clock, log: Log): Promise<void> {
  const strays = allPids().flatMap((pid) => strayOf(pid, layout));
  for (const { pid } of strays) kill(pid);
  const isThere = ({ pid, startTime }: Stray) => readLiving(pid)?.startTime === startTime;
  for (const end = clock.now() + ENDED_MS; strays.some(isThere) && clock.now() < end; )
    await clock.sleep(POLL_MS, AbortSignal.timeout(ENDED_MS));
  if (strays.length > 0)
    log.warn({ pids: strays.map(({ pid }) => pid) }, "porters of a killed server were ended");
}

function strayOf(pid: number, layout: Layout): Stray[] {
  const stat = readLiving(pid);
  return stat === null || !isPorter(pid, layout) || isOwn(pid, layout) ? [] : [{ pid, ...stat }];
}

const isPorter = (pid: number, { porters }: Layout): boolean =>
  readExecutable(pid)?.startsWith(`${porters}/`) ?? false;

function isOwn(pid: number, layout: Layout): boolean {
  const parent = readParent(pid);
  return parent === process.pid || (parent !== null && isPorter(parent, layout) && isOwn(parent, layout));
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}
