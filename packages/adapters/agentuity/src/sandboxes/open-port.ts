import { isHoldfastError, type PreviewInfo, type Sandbox } from "@holdfast/contract";
import type { PreviewApi } from "@holdfast/engine";

/** The preview that a sandbox's one port there is. */
const NAME = "agentuity";

/** Opens a port to everybody, as is asked for there by naming it; once, however often it is asked for. */
export async function exposePort(previews: PreviewApi, sandboxId: string, port: number): Promise<void> {
  try {
    await previews.create(sandboxId, { name: NAME, port, public: true });
  } catch (error) {
    if (!isHoldfastError(error) || error.code !== "preview_exists") throw error;
  }
}

/** As long as it is open. */
export async function openPort(previews: PreviewApi, { id }: Sandbox): Promise<PreviewInfo | null> {
  try {
    return (await previews.list(id)).find(({ name }) => name === NAME) ?? null;
  } catch (error) {
    if (isHoldfastError(error) && error.code === "sandbox_gone") return null;
    throw error;
  }
}
