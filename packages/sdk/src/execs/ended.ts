import type { Exec, ExecStatus } from "../types.generated.ts";

const ENDED: readonly ExecStatus[] = ["exited", "timed_out", "cancelled", "lost", "refused"];

/** Returns whether an exec has reached its final status. */
export const hasEnded = ({ status }: Pick<Exec, "status">): boolean => ENDED.includes(status);
