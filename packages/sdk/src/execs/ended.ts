import type { Exec, ExecStatus } from "./types.generated.ts";

const ENDED: readonly ExecStatus[] = ["exited", "timed_out", "cancelled", "lost", "refused"];

/** Whether an exec has its one outcome. */
export const hasEnded = ({ status }: Pick<Exec, "status">): boolean => ENDED.includes(status);
