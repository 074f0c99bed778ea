export * from "./errors.ts";
export { type DirectoryHold, holdStateDirectory } from "./hold.ts";
export type { ApiKey, KeyStore } from "./keys.ts";
export { readInstallation, renameInstallation, type Snapshot } from "./snapshot.ts";
export { type OpenedStore, openStore, type PreparedStore, prepareStore, type StoreOptions } from "./store.ts";
