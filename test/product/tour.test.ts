import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { CLI, TestServer } from "../support/server/test-server.ts";

let server: TestServer;
let scratch: string;
beforeAll(async () => {
  server = await TestServer.start();
  scratch = mkdtempSync(join(tmpdir(), "holdfast-tour-"));
});
afterAll(async () => {
  rmSync(scratch, { recursive: true, force: true });
  await server[Symbol.asyncDispose]();
});

/** Runs a command line as a user types it; only the state directory is given. */
function holdfast(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const env = { ...server.env };
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [CLI, ...args],
      { env, maxBuffer: 64 << 20, timeout: 60_000 },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code ?? -1), stdout, stderr });
      },
    );
  });
}

describe("holdfast run", () => {
  it("prints the output, exits with the command's code and leaves nothing", async () => {
    const { code, stdout } = await holdfast("run", "--", "sh", "-c", "echo hi; exit 3");
    expect({ code, stdout }).toEqual({ code: 3, stdout: "hi\n" });
    expect(server.leftovers()).toEqual([]);
  });

  it("keeps stdout and stderr apart", async () => {
    const { stdout, stderr } = await holdfast("run", "--", "sh", "-c", "echo out; echo err >&2");
    expect(stdout).toBe("out\n");
    expect(stderr).toContain("err\n");
  });

  it("leaves nothing when it is interrupted", async () => {
    const child = spawn(process.execPath, [CLI, "run", "--", "sh", "-c", "echo up; sleep 100"], {
      env: server.env,
      stdio: ["ignore", "pipe", "pipe"],
    });
    await once(child.stdout, "data");
    child.kill("SIGINT");
    const [code] = await once(child, "exit");
    expect(code).not.toBe(0);
    await vi.waitFor(() => expect(server.leftovers()).toEqual([]), { timeout: 15_000 });
  });
});

describe("the tour", () => {
  it("creates, runs, copies, verifies, shows and deletes", async () => {
    expect((await holdfast("create", "tour", "--label", "for=tour")).code).toBe(0);
    const listed = JSON.parse((await holdfast("ls", "--json")).stdout) as unknown;
    expect(listed).toMatchObject([{ name: "tour", status: "ready" }]);

    const file = join(scratch, "data.bin");
    const bytes = Buffer.from(Array.from({ length: 100_000 }, (_, i) => i % 256));
    writeFileSync(file, bytes);
    expect((await holdfast("cp", file, "tour:/home/user/data.bin")).code).toBe(0);
    expect((await holdfast("exec", "tour", "--", "sh", "-c", "wc -c < data.bin")).stdout.trim()).toBe(
      "100000",
    );
    expect((await holdfast("cp", "tour:/home/user/data.bin", `${file}.back`)).code).toBe(0);
    expect(readFileSync(`${file}.back`).equals(bytes)).toBe(true);

    expect((await holdfast("exec", "tour", "--", "sh", "-c", "exit 7")).code).toBe(7);
    expect((await holdfast("verify", "tour")).code).toBe(0);
    expect((await holdfast("events", "tour")).stdout).toMatch(/sandbox\.ready/);
    expect((await holdfast("get", "tour", "--json")).stdout).toMatch(/"status": ?"ready"/);
    expect((await holdfast("stats")).code).toBe(0);
    expect((await holdfast("rm", "tour")).code).toBe(0);
    expect(server.leftovers()).toEqual([]);
    const missing = await holdfast("get", "tour");
    expect(missing.code).toBe(1);
    expect(missing.stderr).toMatch(/^holdfast: /);
  });

  it("imports an image and runs in it", async () => {
    const root = join(scratch, "rootfs");
    const { cpSync, mkdirSync, symlinkSync } = await import("node:fs");
    mkdirSync(join(root, "bin"), { recursive: true });
    mkdirSync(join(root, "etc"));
    writeFileSync(join(root, "etc/release"), "small\n");
    const { execFileSync } = await import("node:child_process");
    const source = join(scratch, "sh.c");
    writeFileSync(
      source,
      '#include <stdio.h>\nint main(int c, char **v) { printf("static %s\\n", c > 2 ? v[2] : ""); return 5; }\n',
    );
    execFileSync("gcc", ["-static", "-o", join(root, "bin/tiny"), source]);
    cpSync(join(root, "bin/tiny"), join(root, "bin/sh"));
    symlinkSync("/etc/shadow", join(root, "etc/planted"));
    expect((await holdfast("image", "import", "small", root)).code).toBe(0);
    expect(
      JSON.parse((await holdfast("image", "ls", "--json")).stdout)
        .map(({ name }: { name: string }) => name)
        .sort(),
    ).toEqual(["host", "small"]);
    const { code, stdout } = await holdfast("run", "--image", "small", "--", "/bin/tiny", "-c", "hello");
    expect({ code, stdout }).toEqual({ code: 5, stdout: "static hello\n" });
    expect((await holdfast("image", "rm", "small")).code).toBe(0);
    const empty = join(scratch, "empty");
    mkdirSync(empty);
    const refused = await holdfast("image", "import", "nothing", empty);
    expect(refused.code).toBe(1);
    expect(refused.stderr).toMatch(/\/bin\/sh/);
  });
});
