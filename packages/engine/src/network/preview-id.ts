import { createHmac } from "node:crypto";
import type { PreviewId, SandboxId } from "@holdfast/contract";

const LENGTH = 16;
const DIGITS = 36;

/**
 * Returns the id of a preview, which is part of its URL. The id is computed from the sandbox and the name, so that a
 * preview that is deleted and created again under its name keeps its URL. The computation is keyed with the
 * installation's secret, so that the URL of a public preview can't be guessed.
 */
export function previewIdOf(secret: string, sandboxId: SandboxId, name: string): PreviewId {
  const digest = createHmac("sha256", secret).update(`preview-id\0${sandboxId}\0${name}`).digest("hex");
  const digits = BigInt(`0x${digest}`).toString(DIGITS).padStart(LENGTH, "0");
  return `prv_${digits.slice(-LENGTH)}` as PreviewId;
}
