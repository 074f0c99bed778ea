export type { JailedFiles } from "./files/files.ts";
export { type Dialled, type DialOptions, dialKeeper } from "./link/dial.ts";
export { type ConnectOptions, connectKeeper } from "./link/link.ts";
export { type KeeperBinaries, keeperBinaries } from "./porter/binaries.ts";
export { type FileSum, Porter } from "./porter/porter.ts";
export type {
  DriveUsage,
  MountedInto,
  MountInto,
  MountPointBefore,
  MountRefusal,
  StageOrder,
} from "./porter/porter-drive.ts";
export { type HelperEnd, type HelperOrder, PorterError, Spawner } from "./porter/spawner.ts";
export { readExec } from "./wire/exec-codec.ts";
export type { Owner } from "./wire/file-codec.ts";
export { readRecords } from "./wire/journal-codec.ts";
export { Reader } from "./wire/wire.ts";
