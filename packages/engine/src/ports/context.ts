import type { Numbers } from "@holdfast/contract";
import type { DriveDirectories, ImageStore, JournalsAfterDeath, Ports } from "./index.ts";

/** The objects that all parts of a running engine share. */
export interface EngineContext extends Ports {
  numbers: Numbers;
  /**
   * The drives, images and journals of the driver. If the driver lacks such a capability, the object refuses all calls
   * or is empty.
   */
  drives: DriveDirectories;
  images: ImageStore;
  journals: JournalsAfterDeath;
  /** Aborted when the engine stops: the engine's loops end, but instances keep running. */
  stopping: AbortSignal;
}
