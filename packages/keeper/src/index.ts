export { type KeeperBinaries, keeperBinaries } from "./binaries.ts";
export type { Owner } from "./file-codec.ts";
export type { JailedFiles } from "./files.ts";
export { type ConnectOptions, connectKeeper } from "./link.ts";
export { Porter, PorterError } from "./porter.ts";
