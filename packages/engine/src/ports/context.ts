import type { Numbers } from "@holdfast/contract";
import type { Ports } from "./ports.ts";

/** What every part of a running engine shares. */
export interface World extends Ports {
  numbers: Numbers;
  /** Aborted when the engine stops: loops end, instances run on. */
  stopping: AbortSignal;
}
