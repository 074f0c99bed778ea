/**
 * Blaxel's API, for its published, unmodified clients. The control plane covers the account's resources, the data plane
 * the calls into one sandbox. This adapter only translates names, shapes and errors: names of sandboxes and drives are
 * those of Holdfast, so that both APIs address the same resources. The engine holds calls, wakes sandboxes and fences
 * old instances, as for calls to `/v1`. These routes have no operation ids and are not in the API document, which
 * describes Holdfast's own API.
 */
import type { App, RouteContext } from "@holdfast/server/adapter";
import { controlDriveRoutes } from "./control/control-drives.ts";
import { controlPreviewRoutes } from "./control/control-previews.ts";
import { controlSandboxRoutes } from "./control/control-sandboxes.ts";
import { controlSnapshotRoutes } from "./control/control-snapshots.ts";
import { driveMountRoutes } from "./control/drive-mounts.ts";
import { MOUNTED_AT } from "./control/public-origin.ts";
import { admitSessions, SESSION_BASE } from "./control/sessions.ts";
import { BLAXEL } from "./errors.ts";
import { filesystemRoutes } from "./filesystem/filesystem.ts";
import { searchRoutes } from "./filesystem/filesystem-search.ts";
import { uploadRoutes } from "./filesystem/filesystem-uploads.ts";
import { watchRoutes } from "./filesystem/filesystem-watch.ts";
import { unsupportedRoutes } from "./not-supported.ts";
import { healthRoutes } from "./process/health.ts";
import { portRoutes } from "./process/ports.ts";
import { processRoutes } from "./process/process.ts";

type Routes = (app: App, context: RouteContext) => void;

/**
 * Base paths of the control plane. Both serve the same routes, because a client that is configured with a proxy adds
 * `/api` by itself.
 */
const CONTROL_BASES = ["/v0", "/api"] as const;
const CONTROL: readonly Routes[] = [
  controlSandboxRoutes,
  controlSnapshotRoutes,
  controlPreviewRoutes,
  controlDriveRoutes,
  unsupportedRoutes,
];
const DATA_BASE = "/run/:workspace/sandboxes/:name";
const DATA: readonly Routes[] = [
  processRoutes,
  filesystemRoutes,
  uploadRoutes,
  searchRoutes,
  watchRoutes,
  driveMountRoutes,
  portRoutes,
  healthRoutes,
  unsupportedRoutes,
];

export function blaxelRoutes(app: App, context: RouteContext): void {
  app.addHook("onRoute", (route) => {
    route.config = { ...route.config, dialect: BLAXEL };
  });
  const mount = (base: string, all: readonly Routes[]) => {
    for (const routes of all) {
      app.register(async (scope) => routes(scope as App, context), { prefix: `${MOUNTED_AT}${base}` });
    }
  };
  for (const base of CONTROL_BASES) mount(base, CONTROL);
  mount(DATA_BASE, DATA);
  mount(`${SESSION_BASE}/:name`, DATA.map(bySession));
  mount("", [unsupportedRoutes]);
}

/** Changes routes so that they admit callers by a session token instead of an API key. */
const bySession =
  (routes: Routes): Routes =>
  (app, context) => {
    admitSessions(app, context);
    routes(app, context);
  };
