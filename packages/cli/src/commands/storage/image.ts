import { spawn } from "node:child_process";
import { once } from "node:events";
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { Failure } from "../../failure.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print } from "../../output/streams.ts";
import { age, asJson, size, table } from "../../output/table.ts";
import { unreadable } from "../../transfer/local-file.ts";

export function registerImage(program: Command, context: Context): void {
  const image = program
    .command("image")
    .summary("list, import and remove images")
    .addHelpText(
      "after",
      `
Examples:
  holdfast image ls
  holdfast image import alpine alpine-rootfs.tar.gz
  holdfast image rm alpine`,
    );
  registerLs(image, context);
  registerImport(image, context);
  registerRm(image, context);
}

function registerLs(image: Command, context: Context): void {
  image
    .command("ls")
    .summary("list images")
    .option("--json", "print the list as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast image ls --json")
    .action(async ({ json }: { json?: boolean }) => {
      const images = await context.client().images.list({ signal: context.interruption.signal });
      const rows = images.map(({ name, kind, createdAt, sizeBytes, files }) => [
        name,
        kind,
        age(createdAt),
        size(sizeBytes),
        String(files),
      ]);
      print(json ? asJson(images) : table(["NAME", "KIND", "AGE", "SIZE", "FILES"], rows));
    });
}

function registerImport(image: Command, context: Context): void {
  image
    .command("import")
    .summary("create an image from a root file system")
    .argument("<name>", "the image's name")
    .argument("<source>", "a tar archive (optionally gzipped), a directory, or - for a tar archive on stdin")
    .option("--json", "print the image as JSON")
    .addHelpText(
      "after",
      `
Examples:
  holdfast image import alpine alpine-rootfs.tar.gz
  holdfast image import mine ./rootfs
  docker export "$(docker create debian)" | holdfast image import debian -`,
    )
    .action(async (name: string, source: string, { json }: { json?: boolean }) => {
      const { signal } = context.interruption;
      const imported = await withSpinner(`importing ${name}`, async ({ update }) => {
        let sent = 0;
        const counted = async function* (tar: AsyncIterable<Uint8Array>) {
          for await (const piece of tar) {
            sent += piece.length;
            update(`importing ${name}, ${size(sent)} sent`);
            yield piece;
          }
        };
        return context.client().images.import(name, counted(await archive(source)), { signal });
      });
      print(json ? asJson(imported) : `${imported.name}\n`);
    });
}

async function archive(source: string): Promise<AsyncIterable<Uint8Array>> {
  if (source === "-") return process.stdin;
  const found = await stat(source).catch((error: unknown) => {
    throw unreadable(source, error);
  });
  return found.isDirectory()
    ? directoryArchive(source)
    : createReadStream(source, { highWaterMark: 262_144 });
}

/**
 * Packs a directory with tar. Owners are stored as numbers, because names would refer to the host's users. If tar
 * fails, the whole import fails.
 */
async function* directoryArchive(directory: string): AsyncGenerator<Uint8Array> {
  const tar = spawn("tar", ["--numeric-owner", "-C", directory, "-cf", "-", "."], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = once(tar, "exit");
  exited.catch(() => {});
  try {
    yield* tar.stdout as AsyncIterable<Uint8Array>;
    const [code] = (await exited) as [number | null];
    if (code !== 0) throw new Failure(`tar failed with exit code ${code} on ${directory}`);
  } finally {
    tar.kill();
  }
}

function registerRm(image: Command, context: Context): void {
  image
    .command("rm")
    .summary("delete imported images")
    .argument("<names...>", "image names")
    .addHelpText("after", "\nExamples:\n  holdfast image rm alpine")
    .action(async (names: string[]) => {
      for (const name of names) {
        await context.client().images.remove(name, { signal: context.interruption.signal });
        print(`${name}\n`);
      }
    });
}
