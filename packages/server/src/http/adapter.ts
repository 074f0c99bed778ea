import type { App, RouteContext } from "./context.ts";

/** Query parameters and headers that may carry a preview token, in lower case. */
export interface TokenPlaces {
  parameters: readonly string[];
  headers: readonly string[];
}

/** An adapter package: serves the unmodified clients of another platform. */
export interface Adapter {
  /** Name of the platform, in lower case. */
  name: string;
  /** Registers the adapter's routes below its own path. */
  routes(app: App, context: RouteContext): void;
  /**
   * Names of request headers, in lower case, in which the platform's clients send an API key. These headers are never
   * passed to a sandbox's port.
   */
  keyHeaders?: readonly string[];
  /** Query parameters and headers in which the platform's clients send the token of a private preview. */
  previewTokens?: Partial<TokenPlaces>;
  /**
   * Labels that the platform expects on every sandbox. If the server runs with the platform's profile, a diagnosis
   * reports the labels that are missing.
   */
  expectedLabels?: readonly string[];
}
