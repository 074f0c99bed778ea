import { type Exec, isHoldfastError, StartExec } from "@holdfast/contract";
import type { RouteContext } from "../../context.ts";
import { checker } from "../checked.ts";
import { type FilesIn, writeAll } from "./files-in.ts";

export interface CommandOrder {
  id: string;
  argv: readonly string[];
  /** Written before it starts. */
  files: FilesIn;
  timeoutMs?: number | undefined;
  openStdin?: boolean;
  keepAwake?: boolean;
  signal: AbortSignal;
}

const check = checker(StartExec);

/** Starts a command, or follows the one that was started under this id: its files are not put back under its feet. */
export async function startCommand(
  { engine }: RouteContext,
  sandboxId: string,
  { id, argv, files, timeoutMs, openStdin = false, keepAwake = true, signal }: CommandOrder,
): Promise<Exec> {
  const order = {
    id,
    argv,
    keepAwake,
    ...(timeoutMs ? { timeoutMs } : {}),
    ...(openStdin ? { openStdin } : {}),
  };
  const asked = check(order, "The command that was asked for can't be run");
  if (files.length > 0 && !(await isKnown())) await writeAll(engine.files, sandboxId, files, signal);
  const { exec } = await engine.execs.start(sandboxId, asked, { awaited: false, signal });
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
