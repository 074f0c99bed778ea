/** States what must hold. A failure is a bug of ours, never of the caller's. */
export function invariant(condition: unknown, claim: string): asserts condition {
  if (!condition) throw new Error(`invariant broken: ${claim}`);
}

/** Makes the compiler prove that a switch covered every case. */
export function unreachable(value: never): never {
  throw new Error(`invariant broken: unexpected ${JSON.stringify(value)}`);
}
