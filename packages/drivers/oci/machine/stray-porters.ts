import type { Clock, Log } from "@holdfast/engine";
import { isGone } from "../proc/errno.ts";
import { allPids, type ProcessStat, readExecutable, readLiving, readParent } from "../proc/proc-files.ts";
import type { Layout } from "./layout.ts";

const ENDED_MS = 2_000;
const POLL_MS = 2;

interface Stray extends ProcessStat {
  pid: number;
}

/**
 * Ends porters that a killed server left behind. A porter asks the kernel to end it together with its parent process. A
 * porter that was stopped before it could ask would stay forever, or could be continued later and mount something that
 * was removed long ago. Porters carry no marker; they are recognised by their executable in this state directory, which
 * has only one server at a time. Porters that this server started, directly or through another porter, are not ended.
 * The wait is bounded, because a porter that hangs in the kernel never ends.
 */
export async function endStrayPorters(layout: Layout, clock: Clock, log: Log): Promise<void> {
  const strays = allPids().flatMap((pid) => strayOf(pid, layout));
  for (const { pid } of strays) kill(pid);
  const isLiving = ({ pid, startTime }: Stray) => readLiving(pid)?.startTime === startTime;
  for (const end = clock.now() + ENDED_MS; strays.some(isLiving) && clock.now() < end; )
    await clock.sleep(POLL_MS, AbortSignal.timeout(ENDED_MS));
  if (strays.length > 0)
    log.warn({ pids: strays.map(({ pid }) => pid) }, "ended porters that a killed server left behind");
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
