/** Holds a state directory until it is killed, without keeping a reference to the hold. Run with --expose-gc. */
import { holdStateDirectory } from "../hold.ts";

holdStateDirectory(process.argv[2] ?? "");
// Objects become collectable only after this turn of the event loop.
setTimeout(() => {
  globalThis.gc?.();
  setTimeout(() => process.stdout.write("held\n"), 20);
}, 20);
setInterval(() => {}, 60_000);
