/** Holds a state directory until it is killed, without keeping a reference to the hold. Run with --expose-gc. */
import { holdStateDirectory } from "../hold.ts";

holdStateDirectory(process.argv[2] ?? "");
// An object can be garbage-collected only after the turn of the event loop that created it, so a later turn collects.
setTimeout(() => {
  globalThis.gc?.();
  setTimeout(() => process.stdout.write("held\n"), 20);
}, 20);
setInterval(() => {}, 60_000);
