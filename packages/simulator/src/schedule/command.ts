/** What a simulated command does. It is written into argv, so that the engine carries it as it carries any command. */
export type Command =
  /** Says something `prints` times, evenly spread over `ms`, then exits. Without `ms` it runs until it is ended. */
  | { kind: "run"; ms: number | null; exitCode: number; prints: number }
  /** Copies stdin to stdout and exits at its end. */
  | { kind: "cat" }
  | { kind: "missing" };

export function argvOf(command: Command): string[] {
  switch (command.kind) {
    case "run":
      return ["run", String(command.ms ?? "forever"), String(command.exitCode), String(command.prints)];
    case "cat":
      return ["cat"];
    case "missing":
      return ["no-such-command"];
  }
}

export type Parsed = Command | { kind: "prove"; token: string };

export function parse([program, ...rest]: readonly string[]): Parsed {
  switch (program) {
    case "run": {
      const [ms, exitCode, prints] = rest;
      const lasts = ms === "forever" ? null : Number(ms);
      return { kind: "run", ms: lasts, exitCode: Number(exitCode), prints: Number(prints) };
    }
    case "cat":
      return { kind: "cat" };
    case "/.holdfast/keeper":
      return { kind: "prove", token: rest[1] ?? "" };
    default:
      return { kind: "missing" };
  }
}
