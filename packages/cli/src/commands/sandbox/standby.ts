import type { CallOptions, Sandbox, SandboxInfo } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { findSandbox } from "../../lookup.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { printable } from "../../output/table.ts";

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
      "Freezes sandboxes and prints each name once the sandbox is frozen. Their processes stop, and calls to them are " +
      "rejected until 'resume'. Their memory stays in use; 'standby' frees it.",
    doing: "pausing",
    run: (box, options) => box.pause(options),
  },
  {
    name: "resume",
    summary: "resume paused sandboxes",
    description: "Resumes paused sandboxes and prints each name once the sandbox is proven to serve.",
    doing: "resuming",
    run: (box, options) => box.resume(options),
  },
  {
    name: "standby",
    summary: "suspend sandboxes, saving their memory to disk",
    description:
      "Suspends sandboxes and prints each name once the sandbox's memory is freed. The next call wakes the sandbox, and its " +
      "commands continue where they stopped. Connections to the outside are lost. If the host cannot save memory, only files are kept.",
    doing: "suspending",
    run: (box, options) => box.standby(options),
  },
  {
    name: "wake",
    summary: "wake sandboxes from standby",
    description:
      "Wakes sandboxes and prints each name once the sandbox is proven to serve. Calls that need a sandbox awake wake it automatically.",
    doing: "waking",
    run: (box, options) => box.wake(options),
  },
];

const RESTART: Verb = {
  name: "restart",
  summary: "restart sandboxes on the same files",
  description:
    "Stops sandboxes, starts them again on the same files, and prints each name once the sandbox is proven to serve. Memory " +
    "and running commands are lost. Also recovers a failed sandbox while its files are kept.",
  doing: "restarting",
  run: (box, options) => box.restart(options),
};

export function registerStandby(program: Command, context: Context): void {
  for (const verb of [...VERBS, RESTART]) {
    const again = verb === RESTART ? "" : " Does nothing if the sandbox is already in that state.";
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
  print(`${info.name}\n`);
  if (info.status === "standby" && info.checkpoint === null) {
    const text = `the memory of ${info.name} was not saved, only its files: the next call starts it without its processes`;
    printError(`holdfast: ${printable(text)}\n`);
  }
}
