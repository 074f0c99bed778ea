import type { Diagnosis, Finding } from "@holdfast/sdk";
import type { Command } from "commander";
import { duration } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { findSandbox } from "../../lookup.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print } from "../../output/streams.ts";
import { ahead, asJson, factsheet, printable } from "../../output/table.ts";

export function registerDiagnose(program: Command, context: Context): void {
  program
    .command("diagnose")
    .summary("diagnose a sandbox, with evidence")
    .argument("<sandbox>", "name or id")
    .option("--window <time>", "how long to observe, at most 10s (default: 3s)", duration)
    .option("--json", "print the diagnosis as JSON")
    .description(
      "Observes a sandbox from outside and reports its condition in one sentence, then the evidence, what Holdfast does about " +
        "it automatically and when, and what you can do. Does not wake or change the sandbox.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast diagnose box\n  holdfast diagnose --window 10s box")
    .action(async (name: string, { window: windowMs, json }: { window?: number; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, name);
      const diagnosis = await withSpinner("observing", () => box.diagnose({ windowMs, signal }));
      print(json ? asJson(diagnosis) : textOf(diagnosis));
    });
}

function textOf({ findings, unseen, nextAt, status, windowMs }: Diagnosis): string {
  const [first, ...others] = findings;
  const blocks = [
    first === undefined ? "" : blockOf(first),
    ...others.map((finding) => `Also: ${blockOf(finding)}`),
    factsheet([
      ["status", status],
      ["observed for", `${(windowMs / 1000).toFixed(1)} s`],
      ["next step", nextAt === null ? "none" : `${ahead(nextAt)} (${nextAt})`],
      ...unseen.map((what): [string, string] => ["not examined", what]),
    ]),
  ];
  return blocks.filter((block) => block !== "").join("\n");
}

const blockOf = ({ kind, summary, evidence, confidence, holdfast, you }: Finding): string =>
  `${printable(summary)}\n${factsheet([
    ["finding", `${kind}, confidence ${confidence}`],
    ...evidence.map((seen): [string, string] => ["evidence", seen]),
    ["Holdfast", holdfast],
    ...you.map((what): [string, string] => ["you can", what]),
  ])}`;
