import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Sandbox } from "@holdfast/sdk";

const MODULES = join(import.meta.dirname, "..", "..", "..", "node_modules");

/** Returns a package and all its dependencies, as far as they are installed here. */
function closureOf(name: string, found = new Set<string>()): Set<string> {
  const manifest = join(MODULES, name, "package.json");
  if (found.has(name) || !existsSync(manifest)) return found;
  found.add(name);
  const { dependencies, optionalDependencies } = JSON.parse(readFileSync(manifest, "utf8")) as {
    dependencies?: Record<string, string>;
    optionalDependencies?: Record<string, string>;
  };
  for (const each of Object.keys({ ...dependencies, ...optionalDependencies })) closureOf(each, found);
  return found;
}

const MAIN = `import { greeting } from "./greeting.js";
const show = (text) => { document.querySelector("h1").textContent = text; };
show(greeting);
if (import.meta.hot) import.meta.hot.accept("./greeting.js", (next) => show(next.greeting));
`;

export const greetingFile = "/home/user/app/greeting.js";
export const greeting = (text: string): string => `export const greeting = ${JSON.stringify(text)};\n`;

/**
 * Copies Vite, a Node that runs it, and a small project into a sandbox. Returns the command that starts the dev server.
 */
export async function putViteProject(box: Sandbox, port: number): Promise<string> {
  const archive = spawn("tar", ["-C", MODULES, "-chf", "-", ...closureOf("vite"), "node/bin/node"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await box.files.unpack("/home/user/app/node_modules", archive.stdout);
  await box.files.write(
    "/home/user/app/index.html",
    '<!doctype html><h1></h1><script type="module" src="/main.js"></script>',
  );
  await box.files.write("/home/user/app/main.js", MAIN);
  await box.files.write(greetingFile, greeting("hello"));
  return `cd /home/user/app && exec node_modules/node/bin/node node_modules/vite/bin/vite.js --port ${port} --strictPort --host 127.0.0.1`;
}
