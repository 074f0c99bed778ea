/** Asserts a condition that must hold. A failure is a bug in Holdfast, never the caller's mistake. */
export function invariant(condition: unknown, claim: string): asserts condition {
  if (!condition) throw new Error(`invariant broken: ${claim}`);
}

/** Makes the compiler prove that a switch covers every case: it accepts this call only where no case is left. */
export function unreachable(value: never): never {
  throw new Error(`invariant broken: unexpected ${JSON.stringify(value)}`);
}
