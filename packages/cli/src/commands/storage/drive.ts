import type { DriveInfo } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { given, label, megabytes } from "../../arguments/values.ts";
import { type Context, everything } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { accessOf } from "../../output/mount-words.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print } from "../../output/streams.ts";
import { age, asJson, factsheet, labelsOf, size, table } from "../../output/table.ts";
import { registerDriveExport } from "./export.ts";

export function registerDrive(program: Command, context: Context): void {
  const drive = program
    .command("drive")
    .summary("manage drives: persistent directories that sandboxes share")
    .description(
      "A drive is a directory that outlives sandboxes. Any number of sandboxes can mount it at the same time, at creation " +
        "('holdfast create --mount') or later ('holdfast mount'). 'holdfast cp' copies files in and out without a sandbox.",
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
  registerDriveExport(drive, context);
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
    .argument("[name]", "name, unique among drives (default: generated)")
    .option(
      "--size <size>",
      "give the drive its own file system of this size, such as 512m or 2g (default: limited only by the host's disk)",
      megabytes,
    )
    .option("--label <key=value>", "label; repeatable", label)
    .addOption(
      new Option("--if-exists <what>", "what to do if the name is taken").choices(["return", "fail"]),
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
      print(options.json ? asJson(info) : `${info.name}\n`);
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
    .option("--label <key=value>", "only drives with this label; repeatable", label)
    .option("-q, --quiet", "print ids only")
    .option("--json", "print the list as JSON")
    .description("Lists drives with their last measured disk usage. 'drive get' measures a drive.")
    .addHelpText("after", "\nExamples:\n  holdfast drive ls\n  holdfast drive ls --label team=red --json")
    .action(async ({ label: labels, quiet, json }: LsOptions) => {
      const { signal } = context.interruption;
      const { drives } = context.client();
      const found = await everything((page) => drives.list({ labels, signal, ...page }));
      if (json) print(asJson(found));
      else if (quiet) print(found.map(({ id }) => `${id}\n`).join(""));
      else print(listing(found));
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
    .summary("show a drive: status, disk usage and mounts")
    .argument("<drive>", "name or id")
    .option("--json", "print the drive as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast drive get data\n  holdfast drive get --json data")
    .action(async (name: string, { json }: { json?: boolean }) => {
      const { info } = await context.client().drives.get(name, { signal: context.interruption.signal });
      print(json ? asJson(info) : details(info));
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
    .summary("delete drives and their contents")
    .argument("<drives...>", "names or ids")
    .option(
      "--force",
      "detach the drives from sandboxes that mount them; those stay degraded until the path is unmounted",
    )
    .description(
      "Deletes drives with their contents, and prints each one's name or id, as given, once nothing of it is left. Without " +
        "--force, a drive that is mounted in a sandbox, awake or in standby, is not deleted.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast drive rm data other\n  holdfast drive rm --force data")
    .action(async (names: string[], { force }: { force?: boolean }) => {
      const { signal } = context.interruption;
      const { drives } = context.client();
      await withSpinner(`deleting ${names.length}`, () =>
        forEachOf(context, names, async (name) => {
          await drives.delete(name, { force, signal });
          print(`${name}\n`);
        }),
      );
    });
}
