/** Holds a state directory until it is killed, without keeping a reference to the hold. Run with --expose-gc. */
import { holdStateDirectory } from "../hold.ts";

holdStateDirectory(process.argv[2] ?? "");
// Collects garbage in a later turn of the event loop, because an object cannot be collected in the turn that created
// it.
setTimeout(() => {
  globalThis.gc?.();
  setTimeout(() => process.stdout.write("held\n"), 20);
}, 20);
setInterval(() => {}, 60_000);
