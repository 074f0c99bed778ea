export { type KeeperBinaries, keeperBinaries } from "./binaries.ts";
export { type Dialled, type DialOptions, dialKeeper } from "./dial.ts";
export { readExec } from "./exec-codec.ts";
export type { Owner } from "./file-codec.ts";
export type { JailedFiles } from "./files.ts";
export { readRecords } from "./journal.ts";
export { type ConnectOptions, connectKeeper } from "./link.ts";
export { type FileSum, Porter } from "./porter.ts";
export type {
  DriveUsage,
  MountedInto,
  MountInto,
  MountPointBefore,
  MountRefusal,
  StageOrder,
} from "./porter-drive.ts";
export { type HelperEnd, type HelperOrder, PorterError, Spawner } from "./spawner.ts";
export { Reader } from "./wire.ts";
