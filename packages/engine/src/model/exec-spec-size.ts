import type { ExecSpec } from "../ports/records.ts";

/** Returns the size of an exec's command, environment and stored stdin, in characters. */
export const specSize = ({ argv, env, stdin }: Pick<ExecSpec, "argv" | "env" | "stdin">): number =>
  [...argv, ...Object.entries(env).flat(), stdin?.text ?? ""].reduce((sum, text) => sum + text.length, 0);
