import { isHoldfastError, type PreviewInfo, type Sandbox } from "@holdfast/contract";
import type { PreviewApi } from "@holdfast/engine";

/** Name of the preview for the sandbox's one public port. */
const NAME = "agentuity";

/**
 * Makes a port public, as the platform does when a request names a port. Exposing the same port twice has no further
 * effect.
 */
export async function exposePort(previews: PreviewApi, sandboxId: string, port: number): Promise<void> {
  try {
    await previews.create(sandboxId, { name: NAME, port, public: true });
  } catch (error) {
    if (!isHoldfastError(error) || error.code !== "preview_exists") throw error;
  }
}

/** Returns the preview of the sandbox's public port; null if there is none. */
export async function openPort(previews: PreviewApi, { id }: Sandbox): Promise<PreviewInfo | null> {
  try {
    return (await previews.list(id)).find(({ name }) => name === NAME) ?? null;
  } catch (error) {
    if (isHoldfastError(error) && error.code === "sandbox_gone") return null;
    throw error;
  }
}
