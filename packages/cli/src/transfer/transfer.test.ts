import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { lstat, mkdir, mkdtemp, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { CLI, TestServer } from "../../../../test/support/server/test-server.ts";

let server: TestServer;
let directory: string;

beforeAll(async () => {
  server = await TestServer.start();
  directory = await mkdtemp(join(tmpdir(), "holdfast-cp-"));
  const holdfast = server.client();
  await holdfast.sandboxes.create({ name: "box" });
  await holdfast.drives.create({ name: "data" });
  holdfast.close();
  const src = join(directory, "src");
  await mkdir(join(src, "empty"), { recursive: true, mode: 0o711 });
  await mkdir(join(src, "a", "ü"), { recursive: true });
  for (let at = 0; at < 300; at++)
    await writeFile(join(src, "a", "ü", `${at}-${"long".repeat(30)}`), randomBytes(at * 10));
  await writeFile(join(src, "script"), "#!/bin/sh\n", { mode: 0o755 });
  await writeFile(join(src, "secret"), "s", { mode: 0o600 });
  await writeFile(join(src, "big"), randomBytes(5_000_001));
  await symlink("../nowhere", join(src, "a", "dangling"));
  await symlink("script", join(src, "link"));
  execFileSync("find", [src, "-depth", "-exec", "touch", "-h", "-d", "@1500000000.125", "{}", "+"]);
  await utimes(join(src, "script"), 1_000_000.25, 1_000_000.25);
  await utimes(join(src, "empty"), 2_000_000, 2_000_000);
});
afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

/** Runs a line of bash in which `holdfast` is the CLI. */
const bash = (line: string): string =>
  execFileSync(
    "bash",
    ["-euo", "pipefail", "-c", `holdfast() { ${process.execPath} ${CLI} "$@"; }; ${line}`],
    {
      cwd: directory,
      env: server.env,
    },
  ).toString();

/** Kind, permissions, size, time and target of every entry; the size of a directory depends on the file system. */
const listing = (path: string): string =>
  bash(
    `cd ${path}; find . -mindepth 1 -printf '%p %y %m %s %T@ %l\\n' | sed -E 's/( d [0-9]+) [0-9]+/\\1/' | sort`,
  );

for (const place of ["box:/home/user", "drive:data:"]) {
  it(`copies a directory to ${place} and back, with contents, permissions, times and links`, async () => {
    const name = place.split(":").join("-").replaceAll("/", "");
    bash(
      `holdfast cp src ${place}/copied; holdfast cp ${place}/copied back-${name}; diff -r --no-dereference src back-${name}`,
    );
    expect(listing(`back-${name}`)).toBe(listing("src"));
    bash(`holdfast cp ${place}/copied . && diff -r --no-dereference src copied && rm -r copied`);
    expect((await lstat(join(directory, `back-${name}`, "script"))).mtimeMs).toBe(1_000_000_250);
  }, 60_000);

  it(`writes a directory of ${place} to stdout as a tar archive, and unpacks one from stdin`, () => {
    expect(
      bash(
        `holdfast cp ${place}/copied - | tar x -O ./script || holdfast cp ${place}/copied - | tar x -O script`,
      ),
    ).toBe("#!/bin/sh\n");
    bash(
      `tar c -C src . | holdfast cp - ${place}/piped/; holdfast cp ${place}/piped/. piped; diff -r --no-dereference src piped; rm -r piped`,
    );
    bash(
      `holdfast cp ${place}/copied - | holdfast cp - ${place}/piped; echo plain | holdfast cp - ${place}/plain`,
    );
    expect(bash(`holdfast cp ${place}/plain -`)).toBe("plain\n");
  }, 60_000);
}
