import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { pack } from "../pack.ts";
import { anExec, aSandbox, FaultyServer, json } from "./testing/faulty-server.ts";

const run = promisify(execFile);
const modules = fileURLToPath(new URL("../../../node_modules", import.meta.url));
/** The system's Node, if there is one: it is the oldest supported version. */
const node = ["/usr/bin/node", "/usr/local/bin/node"].find((path) => existsSync(path)) ?? process.execPath;

let project: string;

beforeAll(async () => {
  project = await mkdtemp(join(tmpdir(), "holdfast-sdk-user-"));
  await writeFile(join(project, "package.json"), JSON.stringify({ name: "user", type: "module" }));
  const tarball = await pack(project);
  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", tarball], {
    cwd: project,
    timeout: 60_000,
  });
}, 240_000);
afterAll(() => rm(project, { recursive: true, force: true }));

describe("the packed SDK in an empty project", () => {
  it("has no dependencies", async () => {
    const lock = JSON.parse(await readFile(join(project, "package-lock.json"), "utf8")) as {
      packages: object;
    };
    expect(Object.keys(lock.packages)).toEqual(["", "node_modules/@holdfast/sdk"]);
  });

  it("runs a command", async () => {
    const server = await FaultyServer.start();
    server.answer(json(201, aSandbox()), json(200, anExec({ stdout: "42\n" })));
    const program = `
      import { Holdfast, HoldfastError } from "@holdfast/sdk";
      const holdfast = new Holdfast();
      const box = await holdfast.sandboxes.create();
      const { stdout } = await box.exec("node -p 6*7");
      process.stdout.write(stdout + typeof box[Symbol.asyncDispose] + HoldfastError.name);
    `;
    await writeFile(join(project, "program.mjs"), program);
    const { stdout } = await run(node, ["program.mjs"], {
      cwd: project,
      timeout: 30_000,
      env: { ...process.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: "x" },
    });
    await server.stop();
    expect(stdout).toBe("42\nfunctionHoldfastError");
  });

  it("has types that a strict compiler accepts, and that catch a mistake", async () => {
    await mkdir(join(project, "node_modules", "@types"), { recursive: true });
    for (const name of ["@types/node", "undici-types"]) {
      await symlink(join(modules, name), join(project, "node_modules", name));
    }
    await writeFile(
      join(project, "program.ts"),
      `import { ConnectionError, type ExecResult, Holdfast } from "@holdfast/sdk";
      const holdfast = new Holdfast({ timeoutMs: 1000 });
      export async function main(signal: AbortSignal): Promise<number | null> {
        await using box = await holdfast.sandboxes.create({ image: "host", signal });
        const result: ExecResult = await box.exec(["true"], { env: { A: "b" } });
        const run = await box.execs.start("npm test");
        for await (const chunk of run.output()) process.stdout.write(chunk.data);
        await box.files.write("/tmp/a", "hi");
        const drive = await holdfast.drives.getOrCreate({ name: "data", sizeMb: 64 });
        await box.mount(drive.name, "/data", { readOnly: true });
        for (const { state } of await box.mounts()) state satisfies "proven" | "unproven" | "broken";
        // @ts-expect-error a mount has a path
        await holdfast.sandboxes.create({ mounts: [{ drive: "data" }] });
        try { await run.cancel(); } catch (error) { if (error instanceof ConnectionError) error.dispatched satisfies "yes" | "no" | "unknown"; }
        // @ts-expect-error exit codes are numbers
        const wrong: string = result.exitCode;
        return wrong === "" ? null : result.exitCode;
      }`,
    );
    await writeFile(
      join(project, "tsconfig.json"),
      JSON.stringify({
        compilerOptions: {
          strict: true,
          noEmit: true,
          target: "ES2022",
          module: "NodeNext",
          lib: ["ES2023", "ESNext.Disposable"],
          types: ["node"],
        },
        files: ["program.ts"],
      }),
    );
    const checked = run(process.execPath, [join(modules, "typescript", "bin", "tsc"), "-p", "."], {
      cwd: project,
      timeout: 60_000,
    });
    await expect(checked.catch((error: { stdout: string }) => error.stdout)).resolves.toMatchObject({
      stdout: "",
    });
  }, 60_000);
});
