/**
 * Behaviour of a simulated command. The command line (argv) contains it, so that it reaches the keeper through the
 * engine like any command.
 */
export type Command =
  /** Prints `prints` times, evenly spread over `ms`, then exits. Without `ms` it runs until it is killed. */
  | { kind: "run"; ms: number | null; exitCode: number; prints: number }
  /** Copies stdin to stdout, and exits when stdin ends. */
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
