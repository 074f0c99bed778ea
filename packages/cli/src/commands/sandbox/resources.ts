import type { ProcessUsage, ResourceReport } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { findSandbox } from "../../lookup.ts";
import { print } from "../../output/streams.ts";
import { age, asJson, factsheet, size, span, table } from "../../output/table.ts";

/** Longest command line shown. */
const COMMAND_CHARACTERS = 60;

export function registerResources(program: Command, context: Context): void {
  program
    .command("resources")
    .summary("show a sandbox's resource usage and what its processes wait for")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the report as JSON, including the samples of the last minutes")
    .addHelpText("after", "\nExamples:\n  holdfast resources box\n  holdfast resources --json box")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, name);
      const report = await box.resources({ signal: context.interruption.signal });
      print(json ? asJson(report) : `${figures(report)}${processes(report.processes)}`);
    });
}

const figures = ({ cpu, memory, io, disk, processes, ...report }: ResourceReport): string =>
  factsheet([
    ["status", report.status],
    ["age", span(report.durationMs)],
    ["last activity", `${age(report.lastActivityAt)} ago`],
    ["operations", String(report.operations)],
    ["CPU", `${cpu.percent} % of one core, of ${cpu.limitCpus}; ${span(cpu.totalMs)} in total`],
    ["throttled", cpu.throttledMs > 0 ? `${span(cpu.throttledMs)} by its CPU limit` : null],
    ["memory", `${size(memory.bytes)} of ${size(memory.limitBytes)}${trendOf(memory.trendBytesPerMinute)}`],
    ["out of memory", memory.oomKills > 0 ? `${memory.oomKills} killed by the kernel` : null],
    ["I/O", `${size(io.readBytes)} read, ${size(io.writtenBytes)} written, ${io.operations} operations`],
    ["disk", disk && `${size(disk.usedBytes)} of ${size(disk.limitBytes)}`],
    ["processes", `${processes.count} of ${processes.limit}, threads included`],
    ["forks refused", processes.refused > 0 ? String(processes.refused) : null],
  ]);

function trendOf(perMinute: number | null): string {
  if (perMinute === null || perMinute === 0) return "";
  return `, ${perMinute > 0 ? "growing" : "shrinking"} by ${size(Math.abs(perMinute))} per minute`;
}

function processes({ items, truncated }: ResourceReport["processes"]): string {
  if (items.length === 0) return truncated ? "\nThe processes could not be examined.\n" : "";
  const rows = items.map((process) => [
    String(process.pid),
    String(process.parent),
    process.state,
    waitsOf(process),
    span(process.cpuMs),
    size(process.rssBytes),
    process.execId,
    commandOf(process),
  ]);
  const head = ["PID", "PARENT", "STATE", "WAITS FOR", "CPU", "MEMORY", "EXEC", "COMMAND"];
  return `\n${table(head, rows)}${truncated ? "More processes exist than are shown.\n" : ""}`;
}

/** Formats what the threads of a process wait for, such as "3 futex, socket". */
const waitsOf = ({ waits }: ProcessUsage): string =>
  waits
    .map(
      ({ on, threads, what }) => `${threads > 1 ? `${threads} ` : ""}${on}${what === null ? "" : ` ${what}`}`,
    )
    .join(", ");

function commandOf({ commandLine, name }: ProcessUsage): string {
  const line = commandLine === "" ? `[${name}]` : commandLine;
  return line.length > COMMAND_CHARACTERS ? `${line.slice(0, COMMAND_CHARACTERS - 1)}…` : line;
}
