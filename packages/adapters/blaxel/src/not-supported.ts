import { notSupported } from "@holdfast/adapter-shared";
import type { App } from "@holdfast/server/adapter";
import { acceptAnyBody } from "@holdfast/server/adapter";

const ARCHIVE = "An idle sandbox is suspended to disk and keeps its memory and processes.";
const SCHEDULES = "Holdfast has no scheduler; an external scheduler's calls wake a suspended sandbox.";
export const NO_KEYS = "Drives have no keys of their own: any API key of the server may mount every drive.";

/**
 * Hints for unsupported paths, by path segment. Other unsupported paths get no hint, because the error names the path.
 */
const INSTEAD: Readonly<Record<string, string>> = {
  network: "Opened ports are not reported; use waitForPorts of an exec to wait until ports are open.",
  archive: ARCHIVE,
  unarchive: ARCHIVE,
  schedules: SCHEDULES,
  "schedule-executions": SCHEDULES,
  images: "Use 'holdfast image import' to add an image.",
  codegen: "Holdfast calls no models.",
  upgrade: "The keeper is upgraded with the server.",
  environment: "Pass env with each exec.",
  "access-token": NO_KEYS,
  hub: "There is no image hub; 'holdfast image ls' lists the available images.",
  jobs: "Create a sandbox and run the job's command in it.",
};

/** Refuses all paths of the control plane or the data plane that no other route serves. */
export function unsupportedRoutes(app: App): void {
  acceptAnyBody(app);
  for (const url of ["/", "/*"]) {
    app.all<{ Params: { "*"?: string } }>(url, ({ method, params }) => {
      const words = (params["*"] ?? "").split("/").slice(0, 4);
      const known = words.find((word) => Object.hasOwn(INSTEAD, word));
      throw notSupported(
        `${method} /${words.join("/").slice(0, 200)}`,
        known === undefined ? "" : INSTEAD[known],
      );
    });
  }
}
