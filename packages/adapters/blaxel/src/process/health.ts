import { arch } from "node:process";
import { HoldfastError, type Status } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { InSandbox } from "./process.ts";

/** Statuses in which a sandbox can serve the next call, possibly after it is woken. */
const SERVING: readonly Status[] = ["ready", "suspending", "standby", "waking"];

/**
 * Reports the health of a sandbox from what the server already knows. The request does not wake the sandbox and does
 * not count as use of it.
 */
export function healthRoutes(app: App, { engine, version }: RouteContext): void {
  app.get("/health", { schema: { params: InSandbox } }, async ({ params }) => {
    const { id, status, cause, createdAt, provenAt } = await engine.sandboxes.get(params.name);
    if (!SERVING.includes(status)) {
      const message = `The sandbox is ${status}${cause === null ? "" : `: ${cause.message}`}.`;
      throw new HoldfastError("sandbox_degraded", { sandboxId: id, message });
    }
    const uptimeSeconds = Math.floor((Date.now() - Date.parse(createdAt)) / 1_000);
    return {
      status: "ok",
      version,
      ...{ arch, os: "linux", buildTime: "", gitCommit: "", goVersion: "" },
      startedAt: createdAt,
      uptime: `${uptimeSeconds}s`,
      uptimeSeconds,
      upgradeCount: 0,
      lastUpgrade: { status: "idle", step: "none", version: "" },
      holdfast: { id, status, provenAt },
    };
  });
}
