export * from "./errors.ts";
export { type DirectoryHold, holdStateDirectory } from "./hold.ts";
export type { ApiKey, KeyStore } from "./keys.ts";
export { type OpenedStore, openStore, type StoreOptions } from "./store.ts";
