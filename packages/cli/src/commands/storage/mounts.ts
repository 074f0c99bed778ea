import type { Mount } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { forEachOf } from "../each.ts";
import { findSandbox } from "../lookup.ts";
import { sourceOf } from "../mount-words.ts";
import { withSpinner } from "../spinner.ts";
import { asJson, table } from "../table.ts";
import { given } from "../values.ts";

export function registerMounts(program: Command, context: Context): void {
  registerMount(program, context);
  registerUnmount(program, context);
  registerList(program, context);
}

interface MountOptions {
  subpath?: string;
  readOnly?: boolean;
  json?: boolean;
}

function registerMount(program: Command, context: Context): void {
  program
    .command("mount")
    .summary("mount a drive in a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<drive>", "name or id")
    .argument("<path>", "where it appears inside; made where it is missing")
    .option("--subpath <directory>", "mount this directory of the drive; made where it is missing")
    .option("--read-only", "for reading only")
    .option("--json", "print the mount as JSON")
    .description(
      "Mounts a drive and prints the path once the same directory is seen there from inside and outside. The same mount again is\n" +
        "fine, and is proven again. A sandbox that sleeps is woken for it.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast mount box data /workspace\n  holdfast mount --read-only --subpath models box data /models",
    )
    .action(async (sandbox: string, drive: string, path: string, options: MountOptions) => {
      const { subpath, readOnly, json } = options;
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await withSpinner(`mounting ${drive}`, () =>
        box.mount(drive, path, { ...given({ subpath, readOnly }), signal }),
      );
      process.stdout.write(json ? asJson(made) : `${made.path}\n`);
    });
}

function registerUnmount(program: Command, context: Context): void {
  program
    .command("unmount")
    .summary("take drives off a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<paths...>", "where they are mounted")
    .description(
      "Takes drives off a sandbox and prints each path once nothing is mounted there. What is in the drives stays in them. A\n" +
        "sandbox that sleeps is woken for it.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast unmount box /workspace")
    .action(async (sandbox: string, paths: string[]) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      await withSpinner(`unmounting ${paths.length}`, () =>
        forEachOf(context, paths, async (path) => {
          await box.unmount(path, { signal });
          process.stdout.write(`${path}\n`);
        }),
      );
    });
}

function registerList(program: Command, context: Context): void {
  program
    .command("mounts")
    .summary("list the drives of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print them as JSON")
    .description("Lists the drives of a sandbox and where they are. One that sleeps is not woken.")
    .addHelpText("after", "\nExamples:\n  holdfast mounts box\n  holdfast mounts --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.mounts({ signal: context.interruption.signal });
      process.stdout.write(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Mount[]): string =>
  table(
    ["DRIVE", "PATH", "ACCESS", "STATE", "CAUSE"],
    found.map((mount) => [
      sourceOf(mount),
      mount.path,
      mount.readOnly ? "read-only" : "read-write",
      mount.state,
      mount.cause?.message ?? "",
    ]),
  );
