import {
  type DriveDirectories,
  type Driver,
  type ImageStore,
  type JournalsAfterDeath,
  unsupported,
} from "./index.ts";

/** Returns the driver's journals. If the driver lacks this capability, journals can be read only through the keeper. */
export const journalsOf = ({ capabilities }: Driver): JournalsAfterDeath =>
  capabilities.journals ?? {
    read: async () => null,
    end: async () => null,
    archive: async () => undefined,
    remove: async () => undefined,
    archived: async () => [],
    drop: async () => undefined,
  };

/** Returns the driver's drives. If the driver lacks this capability, there are no drives, and none can be created. */
export function drivesOf(driver: Driver): DriveDirectories {
  const refuse = () => Promise.reject(unsupported(driver, "drives"));
  return (
    driver.capabilities.drives?.directories ?? {
      make: refuse,
      open: refuse,
      observe: refuse,
      usage: refuse,
      files: refuse,
      destroy: refuse,
      list: async () => [],
    }
  );
}

/** Returns the driver's images. If the driver lacks this capability, no images are listed, and none can be imported. */
export function imagesOf(driver: Driver): ImageStore {
  const refuse = () => Promise.reject(unsupported(driver, "images"));
  return (
    driver.capabilities.images ?? {
      list: async () => [],
      get: async () => null,
      import: refuse,
      remove: refuse,
    }
  );
}
