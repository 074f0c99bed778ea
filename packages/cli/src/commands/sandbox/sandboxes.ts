import type { Proof, SandboxInfo, SandboxStatus } from "@holdfast/sdk";
import { HoldfastError, NotFoundError } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { type Context, everything } from "../context.ts";
import { forEachOf } from "../each.ts";
import { usage } from "../failure.ts";
import { findSandbox } from "../lookup.ts";
import { mountOf } from "../mount-words.ts";
import { resourcesOf, type SandboxOptions, sandboxOptions } from "../options.ts";
import { withSpinner } from "../spinner.ts";
import { showSteps } from "../steps.ts";
import { age, ahead, asJson, factsheet, labelsOf, size, span, table } from "../table.ts";
import { count, duration, given, givenAny, label, variable } from "../values.ts";

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
    .argument("[name]", "its name (default: made up)")
    .addOption(
      new Option(
        "--from-checkpoint <id>",
        "begin with the files, and the memory, of a checkpoint; image and limits are those of its sandbox",
      ).conflicts(["image", "memory", "cpus", "pids", "disk"]),
    )
    .option(
      "-e, --env <key=value>",
      "environment variable of all its commands, any number of times",
      variable,
    )
    .option("--cwd <path>", "directory that commands start in")
    .option(
      "--idle-ttl <time>",
      "delete it after this long without a call, such as 30m, unless a command is under way in it",
      duration,
    )
    .option(
      "--idle-standby <time>",
      "put it to sleep after this long without a call, such as 15s or 10m, unless a command holds it awake",
      duration,
    )
    .option("--max-execs <number>", "how many execs may be started in it, in all", count)
    .option("--disposable", "it may be deleted when the host runs short, unless an exec is under way in it")
    .addOption(
      new Option(
        "--on-memory-loss <what>",
        "when its processes are gone though nobody ended them, as after a reboot: start again on its files, or fail and keep them",
      ).choices(["cold-start", "fail"]),
    )
    .addOption(
      new Option("--if-exists <what>", "what to do when the name is taken").choices(["return", "fail"]),
    )
    .option("--json", "print the sandbox as JSON")
    .description("Creates a sandbox and prints its name once it is proven to execute and to serve files.")
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
      process.stdout.write(options.json ? asJson(box.info) : `${box.name}\n`);
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
    .addOption(new Option("--status <status...>", "only those in one of these").choices(STATUSES))
    .option("--label <key=value>", "only those with this label, any number of times", label)
    .option("-q, --quiet", "print ids only")
    .option("--json", "print them as JSON")
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
      if (json) process.stdout.write(asJson(found));
      else if (quiet) process.stdout.write(found.map(({ id }) => `${id}\n`).join(""));
      else process.stdout.write(listing(found));
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

/** Of one that sleeps, with what it takes on disk. */
function statusOf({ status, checkpoint }: SandboxInfo): string {
  if (status !== "standby") return status;
  return `standby (${checkpoint === null ? "files only" : size(checkpoint.sizeBytes)})`;
}

function standbyOf({ standbyKind, lifecycle: { idleStandbyMs } }: SandboxInfo): string {
  const kind = standbyKind === "memory" ? "keeps memory and files" : "keeps files only";
  return idleStandbyMs === undefined ? kind : `${kind}; comes after ${span(idleStandbyMs)} without a call`;
}

const checkpointOf = ({ id, takenAt, sizeBytes }: NonNullable<SandboxInfo["checkpoint"]>): string =>
  `${id}, ${size(sizeBytes)}, of ${takenAt}`;

/** What is being done about one that does not serve. */
const recoveryOf = ({ step, message, nextAt }: NonNullable<SandboxInfo["recovery"]>): string =>
  `${step}: ${message} (next decision ${ahead(nextAt)})`;

const originOf = ({ checkpointId, sandboxId }: NonNullable<SandboxInfo["forkedFrom"]>): string =>
  `${checkpointId} of ${sandboxId}`;

function registerGet(program: Command, context: Context): void {
  program
    .command("get")
    .summary("show a sandbox: its status and the evidence for it")
    .argument("<sandbox>", "name or id")
    .option("--json", "print it as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast get box\n  holdfast get --json box")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { info } = await findSandbox(context, name);
      process.stdout.write(json ? asJson(info) : details(info));
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

interface RmOptions {
  force?: boolean;
  all?: boolean;
  grace?: number;
}

function registerRm(program: Command, context: Context): void {
  program
    .command("rm")
    .summary("delete sandboxes, verified")
    .argument("[sandboxes...]", "names or ids")
    .option("-f, --force", "a sandbox that is not there is fine")
    .option("--all", "delete every sandbox")
    .description("Deletes sandboxes from any state and prints each name once its absence was observed.")
    .addHelpText("after", "\nExamples:\n  holdfast rm box other\n  holdfast rm --all")
    .action(async (names: string[], options: RmOptions) => {
      if (options.all ? names.length > 0 : names.length === 0) {
        throw usage("name the sandboxes to delete, or pass --all");
      }
      const { signal } = context.interruption;
      const { sandboxes } = context.client();
      const targets = options.all
        ? (await everything((page) => sandboxes.list({ signal, ...page }))).map(({ id }) => id)
        : names;
      await withSpinner(`deleting ${targets.length}`, () =>
        forEachOf(context, targets, async (name) => {
          const removed = await removeOne(context, name, options.force ?? false);
          if (removed !== null) process.stdout.write(`${removed}\n`);
        }),
      );
    });
}

async function removeOne(context: Context, name: string, force: boolean): Promise<string | null> {
  const { signal } = context.interruption;
  try {
    const box = await findSandbox(context, name);
    await box.delete({ signal });
    return box.name;
  } catch (error) {
    if (force && error instanceof NotFoundError) return null;
    if (!(error instanceof HoldfastError) || error.code !== "pending_cleanup") throw error;
    // There is nothing to show of it, but what is left of it can be removed.
    await context.client().sandboxes.delete(name, { signal });
    return name;
  }
}

function registerVerify(program: Command, context: Context): void {
  program
    .command("verify")
    .summary("prove now that a sandbox serves")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the proof as JSON")
    .description("Runs every check through the path that callers use. Exits 1 if one fails.")
    .addHelpText("after", "\nExamples:\n  holdfast verify box")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(name, { signal });
      const proof = await withSpinner("proving", () => box.verify({ signal }));
      const rows = proof.checks.map((check) => [
        check.name,
        check.ok ? "ok" : "failed",
        `${check.ms.toFixed(1)} ms`,
        check.message ?? "",
      ]);
      process.stdout.write(json ? asJson(proof) : table(["CHECK", "RESULT", "TIME", "MESSAGE"], rows));
      if (!proof.ok) context.exitCode = 1;
    });
}
