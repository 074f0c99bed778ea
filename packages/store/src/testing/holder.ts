/** Holds a state directory until it is killed. */
import { holdStateDirectory } from "../hold.ts";

holdStateDirectory(process.argv[2] ?? "");
process.stdout.write("held\n");
setInterval(() => {}, 60_000);
