import type { Diagnosis, Finding } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { findSandbox } from "../lookup.ts";
import { withSpinner } from "../spinner.ts";
import { ahead, asJson, factsheet, printable } from "../table.ts";
import { duration } from "../values.ts";

export function registerDiagnose(program: Command, context: Context): void {
  program
    .command("diagnose")
    .summary("say what is the matter with a sandbox, and why we think so")
    .argument("<sandbox>", "name or id")
    .option("--window <time>", "look at it for this long, at most 10s (default: 3s)", duration)
    .option("--json", "print the diagnosis as JSON")
    .description(
      "Looks at a sandbox from outside and says in a sentence what is the matter, or that nothing is; then what was seen, what\n" +
        "Holdfast does about it by itself and when, and what you can do. It does not wake the sandbox, and changes nothing.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast diagnose box\n  holdfast diagnose --window 10s box")
    .action(async (name: string, { window: windowMs, json }: { window?: number; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, name);
      const diagnosis = await withSpinner("looking", () => box.diagnose({ windowMs, signal }));
      process.stdout.write(json ? asJson(diagnosis) : textOf(diagnosis));
    });
}

export function textOf({ findings, unseen, nextAt, status, windowMs }: Diagnosis): string {
  const [first, ...others] = findings;
  const blocks = [
    first === undefined ? "" : blockOf(first),
    ...others.map((finding) => `Also: ${blockOf(finding)}`),
    factsheet([
      ["status", status],
      ["looked for", `${(windowMs / 1000).toFixed(1)} s`],
      ["next step", nextAt === null ? "none by itself" : `${ahead(nextAt)} (${nextAt})`],
      ...unseen.map((what): [string, string] => ["not looked at", what]),
    ]),
  ];
  return blocks.filter((block) => block !== "").join("\n");
}

const blockOf = ({ kind, summary, evidence, confidence, holdfast, you }: Finding): string =>
  `${printable(summary)}\n${factsheet([
    ["finding", `${kind}, confidence ${confidence}`],
    ...evidence.map((seen): [string, string] => ["seen", seen]),
    ["Holdfast", holdfast],
    ...you.map((what): [string, string] => ["you can", what]),
  ])}`;
