import type { DriveInfo } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { type Context, everything } from "../context.ts";
import { forEachOf } from "../each.ts";
import { accessOf } from "../mount-words.ts";
import { withSpinner } from "../spinner.ts";
import { age, asJson, factsheet, labelsOf, size, table } from "../table.ts";
import { given, label, megabytes } from "../values.ts";

export function registerDrive(program: Command, context: Context): void {
  const drive = program
    .command("drive")
    .summary("keep directories that sandboxes have in common")
    .description(
      "A drive is a directory that outlives sandboxes. Any number of them can have it at the same time, from their beginning\n" +
        "('holdfast create --mount') or later ('holdfast mount'). Files go in and out with 'holdfast cp', without any sandbox.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast drive create data
  holdfast cp ./models drive:data:/models
  holdfast create --mount data:/workspace box
  holdfast drive ls
  holdfast drive rm data`,
    );
  registerCreate(drive, context);
  registerLs(drive, context);
  registerGet(drive, context);
  registerRm(drive, context);
}

interface CreateOptions {
  size?: number;
  label?: Record<string, string>;
  ifExists?: "return" | "fail";
  json?: boolean;
}

function registerCreate(drive: Command, context: Context): void {
  drive
    .command("create")
    .summary("create a drive")
    .argument("[name]", "its name, which no other drive has (default: made up)")
    .option(
      "--size <size>",
      "a file system of its own, of this size, such as 512m or 2g (default: no limit but the host's disk)",
      megabytes,
    )
    .option("--label <key=value>", "label, any number of times", label)
    .addOption(
      new Option("--if-exists <what>", "what to do when the name is taken").choices(["return", "fail"]),
    )
    .option("--json", "print the drive as JSON")
    .description("Creates a drive and prints its name once it can be mounted.")
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast drive create data\n  holdfast drive create --size 2g --if-exists return data",
    )
    .action(async (name: string | undefined, options: CreateOptions) => {
      const { size: sizeMb, label: labels, ifExists } = options;
      const { signal } = context.interruption;
      const wanted = given({ name, sizeMb, labels, ifExists });
      const { info } = await withSpinner("creating", () =>
        context.client().drives.create({ ...wanted, signal }),
      );
      process.stdout.write(options.json ? asJson(info) : `${info.name}\n`);
    });
}

interface LsOptions {
  label?: Record<string, string>;
  quiet?: boolean;
  json?: boolean;
}

function registerLs(drive: Command, context: Context): void {
  drive
    .command("ls")
    .summary("list drives")
    .option("--label <key=value>", "only those with this label, any number of times", label)
    .option("-q, --quiet", "print ids only")
    .option("--json", "print them as JSON")
    .description(
      "Lists drives, each with what it took on disk when it was last measured; 'get' measures one.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast drive ls\n  holdfast drive ls --label team=red --json")
    .action(async ({ label: labels, quiet, json }: LsOptions) => {
      const { signal } = context.interruption;
      const { drives } = context.client();
      const found = await everything((page) => drives.list({ labels, signal, ...page }));
      if (json) process.stdout.write(asJson(found));
      else if (quiet) process.stdout.write(found.map(({ id }) => `${id}\n`).join(""));
      else process.stdout.write(listing(found));
    });
}

const listing = (found: readonly DriveInfo[]): string =>
  table(
    ["NAME", "STATUS", "SIZE", "USED", "MOUNTS", "AGE", "ID", "CAUSE"],
    found.map((info) => [
      info.name,
      info.status,
      sizeOf(info),
      info.usage === null ? "unknown" : size(info.usage.usedBytes),
      String(info.mounts.length),
      age(info.createdAt),
      info.id,
      info.cause?.message ?? "",
    ]),
  );

const sizeOf = ({ sizeMb }: DriveInfo): string => (sizeMb === null ? "no limit" : `${sizeMb} MB`);

function registerGet(drive: Command, context: Context): void {
  drive
    .command("get")
    .summary("show a drive: its status, what is in use, and who has it")
    .argument("<drive>", "name or id")
    .option("--json", "print it as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast drive get data\n  holdfast drive get --json data")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { info } = await context.client().drives.get(name, { signal: context.interruption.signal });
      process.stdout.write(json ? asJson(info) : details(info));
    });
}

const details = (info: DriveInfo): string =>
  factsheet([
    ["name", info.name],
    ["id", info.id],
    ["status", info.status],
    ["cause", info.cause && `${info.cause.code}: ${info.cause.message}`],
    ["created", info.createdAt],
    ["size", sizeOf(info)],
    ["used", info.usage && usedOf(info.usage)],
    ...info.mounts.map((mount): [string, string] => ["mounted", mountedOf(mount)]),
    ["labels", labelsOf(info.labels)],
  ]);

const usedOf = ({ usedBytes, freeBytes, measuredAt }: NonNullable<DriveInfo["usage"]>): string =>
  `${size(usedBytes)}, ${size(freeBytes)} free, at ${measuredAt}`;

const mountedOf = (mount: DriveInfo["mounts"][number]): string =>
  `${mount.subpath === "/" ? "" : `${mount.subpath} `}in ${mount.sandbox} at ${mount.path}${accessOf(mount)}`;

function registerRm(drive: Command, context: Context): void {
  drive
    .command("rm")
    .summary("delete drives and all that is in them")
    .argument("<drives...>", "names or ids")
    .option(
      "--force",
      "take them from the sandboxes that have them, which are degraded until they give them up",
    )
    .description(
      "Deletes drives with all that is in them, and prints each as it was named once nothing of it is left. One that a sandbox\n" +
        "has, asleep or not, is refused.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast drive rm data other\n  holdfast drive rm --force data")
    .action(async (names: string[], { force }: { force?: boolean }) => {
      const { signal } = context.interruption;
      const { drives } = context.client();
      await withSpinner(`deleting ${names.length}`, () =>
        forEachOf(context, names, async (name) => {
          await drives.delete(name, { force, signal });
          process.stdout.write(`${name}\n`);
        }),
      );
    });
}
