import type { CallOptions, Sandbox, SandboxInfo } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { forEachOf } from "../each.ts";
import { findSandbox } from "../lookup.ts";
import { withSpinner } from "../spinner.ts";
import { printable } from "../table.ts";

interface Verb {
  name: string;
  summary: string;
  description: string;
  doing: string;
  run(box: Sandbox, options: CallOptions): Promise<SandboxInfo>;
}

const VERBS: readonly Verb[] = [
  {
    name: "pause",
    summary: "freeze sandboxes in memory",
    description:
      "Freezes sandboxes and prints each name once that is so. Nothing in them runs on, and calls into them are refused,\n" +
      "until 'resume'. Their memory stays in use; 'standby' frees it.",
    doing: "pausing",
    run: (box, options) => box.pause(options),
  },
  {
    name: "resume",
    summary: "let paused sandboxes go on",
    description: "Lets paused sandboxes go on and prints each name once it is proven.",
    doing: "resuming",
    run: (box, options) => box.resume(options),
  },
  {
    name: "standby",
    summary: "put sandboxes to sleep, with their memory on disk",
    description:
      "Puts sandboxes to sleep and prints each name once nothing of it is in memory. The next call wakes it, and its commands go\n" +
      "on where they stopped. Connections to the outside don't survive. Where the host can't save memory, only files are kept.",
    doing: "putting to sleep",
    run: (box, options) => box.standby(options),
  },
  {
    name: "wake",
    summary: "wake sandboxes from standby",
    description:
      "Wakes sandboxes and prints each name once it is proven. Every call that needs a sandbox awake does so by itself.",
    doing: "waking",
    run: (box, options) => box.wake(options),
  },
];

const RESTART: Verb = {
  name: "restart",
  summary: "start sandboxes anew on the same files",
  description:
    "Ends all that runs in sandboxes, starts them again on their files, and prints each name once it is proven. What was in\n" +
    "their memory is lost, and commands under way with it. Also the way back for one that failed, while its files are kept.",
  doing: "restarting",
  run: (box, options) => box.restart(options),
};

export function registerStandby(program: Command, context: Context): void {
  for (const verb of [...VERBS, RESTART]) {
    const again = verb === RESTART ? "" : "\nOne of which it is so already is fine.";
    program
      .command(verb.name)
      .summary(verb.summary)
      .argument("<sandboxes...>", "names or ids")
      .description(`${verb.description}${again}`)
      .addHelpText("after", `\nExamples:\n  holdfast ${verb.name} box\n  holdfast ${verb.name} box other`)
      .action((names: string[]) =>
        withSpinner(verb.doing, () => forEachOf(context, names, (name) => turn(context, name, verb))),
      );
  }
}

async function turn(context: Context, name: string, { run }: Verb): Promise<void> {
  const { signal } = context.interruption;
  const box = await findSandbox(context, name);
  const info = await run(box, { signal });
  process.stdout.write(`${info.name}\n`);
  if (info.status === "standby" && info.checkpoint === null) {
    const text = `${info.name} has no memory on disk, only its files: the next call starts it anew`;
    process.stderr.write(`holdfast: ${printable(text)}\n`);
  }
}
