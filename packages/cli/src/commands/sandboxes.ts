import type { Proof, SandboxInfo, SandboxStatus } from "@holdfast/sdk";
import { NotFoundError } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { type Context, everything } from "../context.ts";
import { report, usage } from "../failure.ts";
import { findSandbox } from "../lookup.ts";
import { resourcesOf, type SandboxOptions, sandboxOptions } from "../options.ts";
import { withSpinner } from "../spinner.ts";
import { age, asJson, printable, table } from "../table.ts";
import { given, label, variable } from "../values.ts";

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
const DELETES_AT_ONCE = 8;

export function registerSandboxes(program: Command, context: Context): void {
  registerCreate(program, context);
  registerLs(program, context);
  registerGet(program, context);
  registerRm(program, context);
  registerVerify(program, context);
}

interface CreateOptions extends SandboxOptions {
  env?: Record<string, string>;
  cwd?: string;
  ifExists?: "return" | "fail";
  json?: boolean;
}

function registerCreate(program: Command, context: Context): void {
  sandboxOptions(program.command("create").summary("create a sandbox"))
    .argument("[name]", "its name (default: made up)")
    .option(
      "-e, --env <key=value>",
      "environment variable of all its commands, any number of times",
      variable,
    )
    .option("--cwd <path>", "directory that commands start in")
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
  holdfast create --memory 2g --cpus 2 --label team=red --if-exists return box`,
    )
    .action(async (name: string | undefined, options: CreateOptions) => {
      const { image, env, cwd, ifExists, label: labels } = options;
      const wanted = given({ name, image, env, cwd, ifExists, labels, resources: resourcesOf(options) });
      const { signal } = context.interruption;
      const box = await withSpinner("creating", () =>
        context.client().sandboxes.create({ ...wanted, signal }),
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
    found.map(({ name, status, image, createdAt, id, cause }) => [
      name,
      status,
      image,
      age(createdAt),
      id,
      cause?.message ?? "",
    ]),
  );

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
  const { lease, resources } = info;
  const facts: [string, string | null | undefined][] = [
    ["name", info.name],
    ["id", info.id],
    ["status", info.status],
    ["cause", info.cause && `${info.cause.code}: ${info.cause.message}`],
    ["image", info.image],
    ["created", info.createdAt],
    ["last activity", info.lastActivityAt],
    ["ended", info.endedAt],
    ["kept until", info.keptUntil],
    ["proven", info.provenAt],
    ["proof", info.proof && summary(info.proof)],
    ["generation", String(info.generation)],
    ["lease", [lease.state, lease.reason, lease.lastError].filter(Boolean).join(", ")],
    ["next attempt", lease.nextAttemptAt],
    ["limits", `${resources.memoryMb} MB, ${resources.cpus} CPUs, ${resources.pids} processes`],
    [
      "labels",
      Object.entries(info.labels)
        .map(([key, value]) => `${key}=${value}`)
        .join(" "),
    ],
  ];
  return facts
    .filter(([, value]) => value)
    .map(([key, value]) => `${`${key}:`.padEnd(15)}${printable(value ?? "")}\n`)
    .join("");
}

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
        removeAll(context, targets, options.force ?? false),
      );
    });
}

/** One that can't be deleted doesn't keep the others. */
async function removeAll(context: Context, targets: readonly string[], force: boolean): Promise<void> {
  const waiting = [...targets];
  const worker = async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      try {
        const removed = await removeOne(context, name, force);
        if (removed !== null) process.stdout.write(`${removed}\n`);
      } catch (error) {
        context.interruption.signal.throwIfAborted();
        const { text, exitCode } = report(error);
        process.stderr.write(text);
        context.exitCode = exitCode;
      }
    }
  };
  await Promise.all(Array.from({ length: DELETES_AT_ONCE }, worker));
}

async function removeOne(context: Context, name: string, force: boolean): Promise<string | null> {
  try {
    const box = await findSandbox(context, name);
    await box.delete({ signal: context.interruption.signal });
    return box.name;
  } catch (error) {
    if (force && error instanceof NotFoundError) return null;
    throw error;
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
