import { HoldfastError, type SandboxId } from "@holdfast/contract";

interface PublicPort {
  readonly sandboxId: SandboxId;
  readonly port: number;
  readonly controller: AbortController;
}

/**
 * Open connections to public ports whose requests named a port and no preview. Several previews can make the same port
 * public, so the connections are cut when none of these previews is left.
 */
export class PublicPorts {
  readonly #open = new Map<string, PublicPort>();

  /** Returns a signal that is aborted when the port is no longer public. */
  signal(sandboxId: SandboxId, port: number): AbortSignal {
    const key = `${sandboxId}:${port}`;
    const known = this.#open.get(key) ?? { sandboxId, port, controller: new AbortController() };
    this.#open.set(key, known);
    return known.controller.signal;
  }

  cutUnless(isPublic: (sandboxId: SandboxId, port: number) => boolean): void {
    for (const [key, { sandboxId, port, controller }] of this.#open) {
      if (isPublic(sandboxId, port)) continue;
      this.#open.delete(key);
      controller.abort(new HoldfastError("preview_denied"));
    }
  }
}
