/**
 * Finds everything that a published version of the Blaxel client offers for sandboxes and drives, at run time: the
 * classes that its modules export, with every method that their published types do not hide, the pages of its listings,
 * and the functions that call a path of a sandbox, a drive or a volume.
 */
import { readdir, readFile } from "node:fs/promises";

const DIRECTORIES = ["sandbox", "drive", "snapshot", "volume"];
/** Directory of the generated functions. */
const GENERATED = "client";

/** How users write the object that a class's methods are called on; other classes are listed under their own name. */
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

/** Returns the files below a directory of the package, sorted by name; none if the directory does not exist. */
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

/** Returns the names that a module's types declare private. */
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
        // Names that an index re-exports are skipped here: their types are beside the module that defines them.
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

/** Returns the methods of a listing's page; the older client returns an array, which has none of its own. */
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
