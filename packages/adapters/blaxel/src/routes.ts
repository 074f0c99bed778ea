/**
 * Blaxel's API, for its published clients as they are. The control plane is what the account has, the data plane what is
 * asked of one sandbox. Everything here is translation: names, shapes and errors. Names of sandboxes and drives are the
 * core's own, so that both APIs speak of the same things, and whatever holds, wakes or fences a call is the engine's.
 *
 * These routes have no operation ids, and so no place in the API document: Holdfast's own API is what is described there.
 */
import type { App, RouteContext } from "../../context.ts";
import { controlDriveRoutes } from "./control-drives.ts";
import { controlPreviewRoutes } from "./control-previews.ts";
import { controlSandboxRoutes } from "./control-sandboxes.ts";
import { controlSnapshotRoutes } from "./control-snapshots.ts";
import { driveMountRoutes } from "./drive-mounts.ts";
import { BLAXEL } from "./errors.ts";
import { filesystemRoutes } from "./filesystem.ts";
import { searchRoutes } from "./filesystem-search.ts";
import { uploadRoutes } from "./filesystem-uploads.ts";
import { watchRoutes } from "./filesystem-watch.ts";
import { healthRoutes } from "./health.ts";
import { unsupportedRoutes } from "./not-supported.ts";
import { portRoutes } from "./ports.ts";
import { processRoutes } from "./process.ts";
import { admitSessions, SESSION_BASE } from "./sessions.ts";
import { MOUNTED_AT } from "./site.ts";

type Routes = (app: App, context: RouteContext) => void;

/** Two names for one base: the client adds `/api` by itself where it is given a proxy. */
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

/** The same routes, for who has a session's token. */
const bySession =
  (routes: Routes): Routes =>
  (app, context) => {
    admitSessions(app, context);
    routes(app, context);
  };
