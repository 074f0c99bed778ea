import { getSystemErrorMap } from "node:util";
import { KeeperRefusal } from "@holdfast/engine";
import { REFUSAL_REASONS } from "./protocol.ts";
import { type Reader, WireError } from "./wire.ts";

const MESSAGE_LIMIT = 200;

const errnoName = (errno: number): string => getSystemErrorMap().get(-errno)?.[0] ?? `E${errno}`;

export function readRefusal(from: Reader): KeeperRefusal {
  const code = from.u32();
  const errno = from.u32();
  const floor = from.u64();
  const message = from.str().slice(0, MESSAGE_LIMIT);
  from.end();
  const reason = REFUSAL_REASONS[code - 1];
  if (reason === undefined) throw new WireError(`a refusal with the unknown code ${code}`);
  return new KeeperRefusal(
    reason,
    message === "" ? reason.replaceAll("_", " ") : message,
    reason === "system" ? errnoName(errno) : null,
    reason === "below_floor" ? floor : null,
  );
}
