import type { Mount } from "@holdfast/sdk";
import type { Command } from "commander";
import { given } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { findSandbox } from "../../lookup.ts";
import { sourceOf } from "../../output/mount-words.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print } from "../../output/streams.ts";
import { asJson, table } from "../../output/table.ts";

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
    .argument("<path>", "mount point inside the sandbox; created if missing")
    .option("--subpath <directory>", "mount this directory of the drive; created if missing")
    .option("--read-only", "mount read-only")
    .option("--json", "print the mount as JSON")
    .description(
      "Mounts a drive and prints the path once the same directory is seen there from inside and outside. Repeating the same " +
        "mount only verifies it again. Wakes a sandbox in standby.",
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
      print(json ? asJson(made) : `${made.path}\n`);
    });
}

function registerUnmount(program: Command, context: Context): void {
  program
    .command("unmount")
    .summary("unmount drives from a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<paths...>", "mount points")
    .description(
      "Unmounts drives and prints each path once nothing is mounted there. The drives keep their files. Wakes a sandbox in " +
        "standby.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast unmount box /workspace")
    .action(async (sandbox: string, paths: string[]) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      await withSpinner(`unmounting ${paths.length}`, () =>
        forEachOf(context, paths, async (path) => {
          await box.unmount(path, { signal });
          print(`${path}\n`);
        }),
      );
    });
}

function registerList(program: Command, context: Context): void {
  program
    .command("mounts")
    .summary("list the mounts of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the list as JSON")
    .description("Lists the drives mounted in a sandbox and their paths. Does not wake the sandbox.")
    .addHelpText("after", "\nExamples:\n  holdfast mounts box\n  holdfast mounts --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.mounts({ signal: context.interruption.signal });
      print(json ? asJson(found) : listing(found));
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
