/**
 * All that a published version of the Blaxel client offers for sandboxes and drives, as it is found at run time: the classes
 * that its modules for them export, with every method that their published types don't hide, the pages of its listings, and
 * the functions behind them that call a path of a sandbox, a drive or a volume.
 */
import { readdir, readFile } from "node:fs/promises";

const DIRECTORIES = ["sandbox", "drive", "snapshot", "volume"];
/** Generated calls, which the functions below are. */
const GENERATED = "client";

/** How users write what an instance's methods are called on; a class that is not here goes by its own name. */
const WRITTEN = {
  SandboxInstance: "sandbox",
  SandboxProcess: "sandbox.process",
  SandboxFileSystem: "sandbox.fs",
  SandboxDrive: "sandbox.drives",
  SandboxNetwork: "sandbox.network",
  SandboxPreviews: "sandbox.previews",
  SandboxSessions: "sandbox.sessions",
  SandboxSchedules: "sandbox.schedules",
  SandboxSnapshotsResource: "sandbox.snapshots",
  SandboxCodegen: "sandbox.codegen",
  SandboxSystem: "sandbox.system",
  SandboxPreviewTokens: "preview.tokens",
  DriveInstance: "drive",
  VolumeInstance: "volume",
  Snapshot: "snapshot",
  CodeInterpreter: "interpreter",
};

const isClass = (value) => typeof value === "function" && /^class\b/.test(String(value));

/** Files of a directory of the package, those below it included, in the order of their names; none where there is none. */
async function modulesBelow(directory) {
  const entries = await readdir(directory, { withFileTypes: true }).catch(() => []);
  const nested = await Promise.all(
    entries
      .sort((a, b) => (a.name < b.name ? -1 : 1))
      .map((entry) => {
        if (entry.isDirectory())
          return entry.name === GENERATED ? [] : modulesBelow(new URL(`${entry.name}/`, directory));
        return /(?<!\.test)\.js$/.test(entry.name) ? [new URL(entry.name, directory)] : [];
      }),
  );
  return nested.flat();
}

/** Names that the types of a module declare to be nobody else's. */
async function hiddenBy(module) {
  const types = new URL(module.href.replace("/esm/", "/cjs/types/").replace(/\.js$/, ".d.ts"));
  const text = await readFile(types, "utf8");
  return new Set([...text.matchAll(/^\s*(?:private|protected) (?:static )?(\w+)/gm)].map(([, name]) => name));
}

function* methodsOf(value, isHidden) {
  for (const [name, { value: member }] of Object.entries(Object.getOwnPropertyDescriptors(value)))
    if (typeof member === "function" && name !== "constructor" && !isHidden(name)) yield [name, member];
}

function* methodsOfClass(type, name, isHidden) {
  for (const [method, member] of methodsOf(type, isHidden)) {
    if (isClass(member)) yield* methodsOfClass(member, `${name}.${method}`, isHidden);
    else yield { type: name, method };
  }
  for (const [method] of methodsOf(type.prototype, isHidden)) yield { type: WRITTEN[name] ?? name, method };
}

async function methodsOfClasses(entry) {
  const seen = new Set();
  const found = [];
  for (const directory of DIRECTORIES) {
    for (const module of await modulesBelow(new URL(`./${directory}/`, entry))) {
      for (const [name, type] of Object.entries(await import(module.href))) {
        if (!isClass(type) || type.prototype instanceof Error || seen.has(type)) continue;
        // Re-exported by an index: its types are beside the module that it comes from.
        if (/\/index\.js$/.test(module.pathname) && !(await declares(module, name))) continue;
        seen.add(type);
        const hidden = await hiddenBy(module);
        found.push(...methodsOfClass(type, name, (method) => hidden.has(method)));
      }
    }
  }
  return found;
}

async function declares(module, name) {
  return new RegExp(`class ${name}\\b`).test(await readFile(module, "utf8"));
}

/** Of a listing's page; an array, as the older client gives it, has none of its own. */
const methodsOfPage = (page) =>
  Reflect.ownKeys(page)
    .filter((key) => typeof page[key] === "function")
    .map((key) => ({ type: "page", method: typeof key === "symbol" ? `[${key.description}]` : key }));

const OF_SANDBOXES =
  /url: ["']\/(sandbox|drives|volumes|snapshots|schedules|schedule-executions|process|filesystem|codegen|network)/;

const functionsOf = (client) =>
  Object.entries(client)
    .filter(([, value]) => typeof value === "function" && !isClass(value))
    .filter(([, value]) => OF_SANDBOXES.test(String(value)))
    .map(([method]) => ({ type: "functions", method }));

export async function surfaceOf(packageName, client, page) {
  const entry = import.meta.resolve(packageName);
  return [...(await methodsOfClasses(entry)), ...methodsOfPage(page), ...functionsOf(client)];
}
