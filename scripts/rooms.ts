/**
 * The rooms of the source tree and what each may import. This table is the only place where the direction of imports is
 * decided; `npm run check` enforces it.
 *
 * A room is a folder. A file belongs to the room with the longest path that contains the file. A room may import itself
 * and the rooms that its row lists. Importing a room includes all rooms inside it. Rows are ordered from the lowest
 * room to the highest. A row may list only rooms of rows above it, so the table cannot describe a cycle. Tests in
 * packages and `testing/` folders are exempt. In the C folders of the keeper, an import is an `#include`.
 */
interface Room {
  path: string;
  imports: readonly string[];
}

const CONTRACT = "packages/contract";
const ENGINE = "packages/engine/src";
const STORE = "packages/store";
const KEEPER = "packages/keeper/src";
const KEEPER_C = "packages/keeper/c";
const OCI = "packages/drivers/oci";
const SERVER = "packages/server/src";
const ADAPTERS = "packages/adapters";
const SDK = "packages/sdk";
const DAEMON = "packages/daemon";
const SUPPORT = "test/support";

/** Returns the rooms inside `base`. Each row is `name` or `name: rooms of the same base that it may import`. */
function layers(base: string, outside: readonly string[], rows: readonly string[]): Room[] {
  return rows.map((row) => {
    const [name = "", imports = ""] = row.split(":").map((part) => part.trim());
    const own = imports.split(" ").filter((word) => word !== "");
    const at = (room: string) => (room === "." ? base : `${base}/${room}`);
    return { path: at(name), imports: [...outside, ...own.map(at)] };
  });
}

export const ROOMS: readonly Room[] = [
  { path: CONTRACT, imports: [] },

  ...layers(
    ENGINE,
    [CONTRACT],
    [
      "ports",
      "lib: ports",
      "model: ports lib",
      "events: ports lib",
      "live: ports lib model events",
      "launch: ports lib model live events",
      "lifecycle: ports lib model live events launch",
      "execs: ports lib model live events launch lifecycle",
      "files: ports lib model live events launch lifecycle",
      "network: ports lib model live events launch lifecycle",
      "healing: ports lib model live events launch lifecycle",
      "diagnosis: ports lib model live events launch lifecycle",
      "drives: ports lib model live events launch lifecycle files",
      "processes: ports lib model live events launch lifecycle execs",
      "cleanup: ports lib model live events launch lifecycle execs healing drives",
      "alerts: ports lib model live events launch lifecycle execs healing cleanup",
      ".: ports lib model live events launch lifecycle execs files network healing diagnosis drives processes cleanup alerts",
    ],
  ),

  { path: STORE, imports: [CONTRACT, ENGINE] },

  ...layers(
    KEEPER,
    [CONTRACT, ENGINE],
    ["wire", "files: wire", "link: wire files", "porter: wire files link", ".: wire files link porter"],
  ),

  ...layers(
    KEEPER_C,
    [],
    [
      "loop",
      "files: loop",
      "stream: loop",
      "exec: loop",
      "service: loop stream exec",
      "porter: loop files",
      "keeper: loop files stream exec service",
      "fuzz: loop files stream exec service",
    ],
  ),

  ...layers(
    OCI,
    [CONTRACT, ENGINE, KEEPER],
    [
      "proc",
      "machine: proc",
      "images: proc machine",
      "files: proc machine images",
      "journals: proc machine files",
      "drives: proc machine files",
      "backup: proc machine images files journals drives",
      "observe: proc machine files drives",
      "stop: proc machine files drives observe",
      "checkpoint: proc machine images journals files drives observe stop",
      "launch: proc machine images journals files drives observe stop checkpoint",
      ".: proc machine images journals files drives backup observe stop checkpoint launch",
    ],
  ),
  { path: "packages/drivers", imports: [CONTRACT, ENGINE, KEEPER, OCI] },

  ...layers(
    SERVER,
    [CONTRACT, ENGINE],
    [
      "ports",
      "http: ports",
      "streams: ports http",
      "openapi: ports http",
      "telemetry: ports http streams",
      "port-proxy: ports http telemetry",
      "routes: ports http streams telemetry port-proxy",
      ".: ports http streams openapi telemetry port-proxy routes",
    ],
  ),

  { path: `${ADAPTERS}/shared`, imports: [CONTRACT, ENGINE, SERVER] },
  { path: `${ADAPTERS}/blaxel`, imports: [CONTRACT, ENGINE, SERVER, `${ADAPTERS}/shared`] },
  { path: `${ADAPTERS}/agentuity`, imports: [CONTRACT, ENGINE, SERVER, `${ADAPTERS}/shared`] },
  { path: `${ADAPTERS}/runbook`, imports: [CONTRACT, ENGINE, SERVER, `${ADAPTERS}/shared`] },
  {
    path: DAEMON,
    imports: [CONTRACT, ENGINE, STORE, KEEPER, OCI, SERVER, ADAPTERS],
  },

  { path: `${SDK}/src`, imports: [] },
  // The generator of the SDK's types and its packer. They run at build time and are not part of the published package.
  { path: SDK, imports: [CONTRACT, `${SDK}/src`] },
  { path: "packages/cli", imports: [SDK, OCI] },
  { path: "packages/simulator", imports: [CONTRACT, ENGINE, STORE] },

  // The tests of the whole product use it from outside. Only support/server and support/crash import its parts, to
  // start a server with parts that fail on purpose.
  { path: "test/setup", imports: [] },
  ...layers(SUPPORT, [`${SDK}/src`], ["workloads"]),
  { path: `${SUPPORT}/server`, imports: [ENGINE, OCI, DAEMON, `${SDK}/src`, "test/setup"] },
  { path: `${SUPPORT}/crash`, imports: [ENGINE, `${SDK}/src`, `${SUPPORT}/server`] },
  ...layers(
    SUPPORT,
    [`${SDK}/src`],
    ["faults: server", "chaos: server faults", "clients: server", "runbook: server chaos"],
  ),
  ...layers(
    "test",
    [CONTRACT, `${SDK}/src`],
    [
      "product: setup support",
      "operations: setup support",
      "failures: setup support",
      "clients: setup support",
    ],
  ),
];
