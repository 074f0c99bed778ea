import type { Command } from "commander";
import { describe, expect, it } from "vitest";
import type { Context } from "./context.ts";
import { programOf } from "./program.ts";

const commandsOf = (command: Command): Command[] => [command, ...command.commands.flatMap(commandsOf)];

/** Builds every command. Help reads nothing from the context. */
const all = () => commandsOf(programOf({} as Context));

const textsOf = (command: Command): string[] => [
  command.summary(),
  command.description(),
  ...command.options.map(({ description }) => description),
  ...command.registeredArguments.map(({ description }) => description),
];

function helpOf(command: Command, width: number): string {
  let help = "";
  command.configureOutput({
    getOutHelpWidth: () => width,
    writeOut: (text) => {
      help += text;
    },
  });
  command.outputHelp();
  return help;
}

describe("the help", () => {
  it("breaks no line inside a paragraph, so that every terminal width decides its own line breaks", () => {
    for (const text of all().flatMap(textsOf)) expect(text).not.toMatch(/[^\n]\n[^\n]/);
  });

  it.each([80, 120])("fits into %i columns, except for examples", (width) => {
    for (const command of all()) {
      const [explained] = helpOf(command, width).split("\nExamples:");
      for (const line of (explained ?? "").split("\n")) expect(line.length, line).toBeLessThanOrEqual(width);
    }
  });
});
