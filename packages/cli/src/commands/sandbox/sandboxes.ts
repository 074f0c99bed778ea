import type { Proof, SandboxInfo, SandboxStatus } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { resourcesOf, type SandboxOptions, sandboxOptions } from "../../arguments/options.ts";
import { count, duration, given, givenAny, label, variable } from "../../arguments/values.ts";
import { type Context, everything } from "../../context.ts";
import { findSandbox } from "../../lookup.ts";
import { mountOf } from "../../output/mount-words.ts";
import { withSpinner } from "../../output/spinner.ts";
import { showSteps } from "../../output/steps.ts";
import { print } from "../../output/streams.ts";
import { age, ahead, asJson, factsheet, labelsOf, size, span, table } from "../../output/table.ts";
import { registerRm } from "./rm.ts";

const STATUSES: readonly SandboxStatus[] = [
  "queued",
  "creating",
  "ready",
  "degraded",
  "paused",
  "suspending",
  "standby",
  "waking",
  "stopping",
  "terminated",
  "failed",
];

export function registerSandboxes(program: Command, context: Context): void {
  registerCreate(program, context);
  registerLs(program, context);
  registerGet(program, context);
  registerRm(program, context);
  registerVerify(program, context);
}

interface CreateOptions extends SandboxOptions {
  fromCheckpoint?: string;
  idleTtl?: number;
  idleStandby?: number;
  maxExecs?: number;
  disposable?: boolean;
  onMemoryLoss?: "fail" | "cold-start";
  env?: Record<string, string>;
  cwd?: string;
  ifExists?: "return" | "fail";
  json?: boolean;
}

function registerCreate(program: Command, context: Context): void {
  sandboxOptions(program.command("create").summary("create a sandbox"))
    .argument("[name]", "name of the sandbox (default: generated)")
    .addOption(
      new Option(
        "--from-checkpoint <id>",
        "start with the files and memory of a checkpoint; image and limits come from the checkpoint",
      ).conflicts(["image", "memory", "cpus", "pids", "disk"]),
    )
    .option(
      "-e, --env <key=value>",
      "environment variable for all commands in the sandbox; repeatable",
      variable,
    )
    .option("--cwd <path>", "directory that commands start in")
    .option(
      "--idle-ttl <time>",
      "delete the sandbox after this long without a call, such as 30m, unless a command is running",
      duration,
    )
    .option(
      "--idle-standby <time>",
      "suspend the sandbox after this long without a call, such as 15s or 10m, unless a command keeps it awake",
      duration,
    )
    .option("--max-execs <number>", "total number of execs that may be started", count)
    .option("--disposable", "allow deletion when the host runs short of resources, unless an exec is running")
    .addOption(
      new Option(
        "--on-memory-loss <what>",
        "if the processes are lost unexpectedly, as after a reboot: start again on the same files, or fail and keep the files",
      ).choices(["cold-start", "fail"]),
    )
    .addOption(
      new Option("--if-exists <what>", "what to do if the name is taken").choices(["return", "fail"]),
    )
    .option("--json", "print the sandbox as JSON")
    .description("Creates a sandbox and prints its name once it is proven to run commands and serve files.")
    .addHelpText(
      "after",
      `
Examples:
  holdfast create box
  holdfast create --memory 2g --cpus 2 --label team=red --if-exists return box
  holdfast create --idle-standby 15s box
  holdfast create --mount data:/workspace --mount data/models:/models:ro box
  holdfast create --from-checkpoint "$(holdfast checkpoint create box)" other
  holdfast create --ttl 2h --max-execs 100 --disk 1g --disposable box`,
    )
    .action(async (name: string | undefined, options: CreateOptions) => {
      const { image, fromCheckpoint, env, cwd, ifExists, label: labels, mount: mounts } = options;
      const { ttl: ttlMs, idleTtl: idleTtlMs, idleStandby: idleStandbyMs } = options;
      const { maxExecs, disposable, onMemoryLoss } = options;
      const lifecycle = givenAny({ ttlMs, idleTtlMs, idleStandbyMs, maxExecs, disposable, onMemoryLoss });
      const resources = resourcesOf(options);
      const wanted = given({
        ...{ name, image, fromCheckpoint, env, cwd, ifExists, labels, mounts, resources, lifecycle },
      });
      const { signal } = context.interruption;
      const box = await withSpinner("creating", (progress) =>
        context.client().sandboxes.create({ ...wanted, signal, onProgress: showSteps("creating", progress) }),
      );
      print(options.json ? asJson(box.info) : `${box.name}\n`);
    });
}

interface LsOptions {
  status?: SandboxStatus[];
  label?: Record<string, string>;
  quiet?: boolean;
  json?: boolean;
}

function registerLs(program: Command, context: Context): void {
  program
    .command("ls")
    .summary("list sandboxes")
    .addOption(
      new Option("--status <status...>", "only sandboxes with one of these statuses").choices(STATUSES),
    )
    .option("--label <key=value>", "only sandboxes with this label; repeatable", label)
    .option("-q, --quiet", "print ids only")
    .option("--json", "print the list as JSON")
    .addHelpText(
      "after",
      `
Examples:
  holdfast ls
  holdfast ls --status degraded failed
  holdfast ls --label team=red --json`,
    )
    .action(async ({ status, label: labels, quiet, json }: LsOptions) => {
      const { signal } = context.interruption;
      const { sandboxes } = context.client();
      const found = await everything((page) => sandboxes.list({ status, labels, signal, ...page }));
      if (json) print(asJson(found));
      else if (quiet) print(found.map(({ id }) => `${id}\n`).join(""));
      else print(listing(found));
    });
}

const listing = (found: readonly SandboxInfo[]): string =>
  table(
    ["NAME", "STATUS", "IMAGE", "AGE", "ID", "CAUSE"],
    found.map((info) => [
      info.name,
      statusOf(info),
      info.image,
      age(info.createdAt),
      info.id,
      info.cause?.message ?? "",
    ]),
  );

/** Formats the status; for standby, with the size of the saved memory. */
function statusOf({ status, checkpoint }: SandboxInfo): string {
  if (status !== "standby") return status;
  return `standby (${checkpoint === null ? "files only" : size(checkpoint.sizeBytes)})`;
}

function standbyOf({ standbyKind, lifecycle: { idleStandbyMs } }: SandboxInfo): string {
  const kind = standbyKind === "memory" ? "preserves memory and files" : "preserves files only";
  return idleStandbyMs === undefined ? kind : `${kind}; starts after ${span(idleStandbyMs)} without a call`;
}

const checkpointOf = ({ id, takenAt, sizeBytes }: NonNullable<SandboxInfo["checkpoint"]>): string =>
  `${id}, ${size(sizeBytes)}, taken ${takenAt}`;

/** Formats the recovery in progress of a sandbox that does not serve. */
const recoveryOf = ({ step, message, nextAt }: NonNullable<SandboxInfo["recovery"]>): string =>
  `${step}: ${message} (next decision ${ahead(nextAt)})`;

const originOf = ({ checkpointId, sandboxId }: NonNullable<SandboxInfo["forkedFrom"]>): string =>
  `${checkpointId} of ${sandboxId}`;

function registerGet(program: Command, context: Context): void {
  program
    .command("get")
    .summary("show a sandbox: its status and the evidence for it")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the sandbox as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast get box\n  holdfast get --json box")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { info } = await findSandbox(context, name);
      print(json ? asJson(info) : details(info));
    });
}

function details(info: SandboxInfo): string {
  const { lease, lifecycle } = info;
  return factsheet([
    ["name", info.name],
    ["id", info.id],
    ["status", info.status],
    ["cause", info.cause && `${info.cause.code}: ${info.cause.message}`],
    ["recovery", info.recovery && recoveryOf(info.recovery)],
    ["image", info.image],
    ["forked from", info.forkedFrom && originOf(info.forkedFrom)],
    ["created", info.createdAt],
    ["last activity", info.lastActivityAt],
    ["ended", info.endedAt],
    ["kept until", info.keptUntil],
    ["expires", info.expiresAt && `${info.expiresAt} (${ahead(info.expiresAt)})`],
    [
      "execs started",
      [info.execsStarted, lifecycle.maxExecs].filter((count) => count !== undefined).join(" of "),
    ],
    ["disposable", lifecycle.disposable ? "yes" : null],
    ["on memory loss", lifecycle.onMemoryLoss],
    ["standby", standbyOf(info)],
    ["checkpoint", info.checkpoint && checkpointOf(info.checkpoint)],
    ["proven", info.provenAt],
    ["proof", info.proof && summary(info.proof)],
    ["generation", String(info.generation)],
    ["lease", [lease.state, lease.reason, lease.lastError].filter(Boolean).join(", ")],
    ["next attempt", lease.nextAttemptAt],
    ["limits", limitsOf(info)],
    ...info.mounts.map((mount): [string, string] => ["mount", mountOf(mount)]),
    ["labels", labelsOf(info.labels)],
  ]);
}

const limitsOf = ({ resources: { memoryMb, cpus, pids, diskMb } }: SandboxInfo): string =>
  `${memoryMb} MB, ${cpus} CPUs, ${pids} processes${diskMb === undefined ? "" : `, ${diskMb} MB of disk`}`;

const summary = ({ checks }: Proof): string =>
  checks
    .map(({ name, ok, message }) => `${name} ${ok ? "ok" : `failed (${message ?? "no reason given"})`}`)
    .join(", ");

function registerVerify(program: Command, context: Context): void {
  program
    .command("verify")
    .summary("verify that a sandbox serves")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the proof as JSON")
    .description("Runs every check over the same path as client calls. Exits 1 if a check fails.")
    .addHelpText("after", "\nExamples:\n  holdfast verify box")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(name, { signal });
      const proof = await withSpinner("verifying", () => box.verify({ signal }));
      const rows = proof.checks.map((check) => [
        check.name,
        check.ok ? "ok" : "failed",
        `${check.ms.toFixed(1)} ms`,
        check.message ?? "",
      ]);
      print(json ? asJson(proof) : table(["CHECK", "RESULT", "TIME", "MESSAGE"], rows));
      if (!proof.ok) context.exitCode = 1;
    });
}
