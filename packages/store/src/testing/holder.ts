/** Holds a state directory until it is killed, without keeping what it was given for it. Run with --expose-gc. */
import { holdStateDirectory } from "../hold.ts";

holdStateDirectory(process.argv[2] ?? "");
// The collector takes what is unreachable only once this turn of the event loop is over.
setTimeout(() => {
  globalThis.gc?.();
  setTimeout(() => process.stdout.write("held\n"), 20);
}, 20);
setInterval(() => {}, 60_000);
