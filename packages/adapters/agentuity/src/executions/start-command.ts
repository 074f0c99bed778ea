import { checker } from "@holdfast/adapter-shared";
import { type Exec, isHoldfastError, StartExec } from "@holdfast/contract";
import type { RouteContext } from "@holdfast/server/adapter";
import { type FilesIn, writeAll } from "../files/files-in.ts";

interface CommandOrder {
  id: string;
  argv: readonly string[];
  /** Files to write before the command starts. */
  files: FilesIn;
  timeoutMs?: number | undefined;
  openStdin?: boolean;
  keepAwake?: boolean;
  /**
   * Whether a client is about to read the output. The command then waits for that reader for a while before output is
   * dropped.
   */
  expectsReader: boolean;
  signal: AbortSignal;
}

const check = checker(StartExec);

/**
 * Starts a command and returns its exec. If a command was already started under this id, returns that command's exec
 * and does not write the files again.
 */
export async function startCommand(
  { engine }: RouteContext,
  sandboxId: string,
  { id, argv, files, timeoutMs, openStdin = false, keepAwake = true, expectsReader, signal }: CommandOrder,
): Promise<Exec> {
  const order = {
    id,
    argv,
    keepAwake,
    ...(timeoutMs ? { timeoutMs } : {}),
    ...(openStdin ? { openStdin } : {}),
  };
  const asked = check(order, "The command is not valid");
  if (files.length > 0 && !(await isKnown())) await writeAll(engine.files, sandboxId, files, signal);
  const { exec } = await engine.execs.start(sandboxId, asked, { awaited: false, expectsReader, signal });
  return exec;

  async function isKnown(): Promise<boolean> {
    try {
      await engine.execs.get(id);
      return true;
    } catch (error) {
      if (isHoldfastError(error) && error.code === "exec_not_found") return false;
      throw error;
    }
  }
}
