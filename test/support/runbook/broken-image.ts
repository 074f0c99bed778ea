import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { CLI, type TestServer } from "../server/test-server.ts";

/** Creates an image `broken` whose files were deleted after the import, so that no sandbox can be started from it. */
export function importBroken(server: TestServer): void {
  const root = mkdtempSync(join(tmpdir(), "holdfast-root-"));
  try {
    const libraries = execFileSync("ldd", ["/bin/sh"], { encoding: "utf8" }).match(/\/\S+/g) ?? [];
    for (const path of ["/bin/sh", ...libraries]) {
      mkdirSync(join(root, dirname(path)), { recursive: true });
      copyFileSync(path, join(root, path));
      chmodSync(join(root, path), 0o755);
    }
    execFileSync(process.execPath, [CLI, "image", "import", "broken", root], { env: server.env });
  } finally {
    rmSync(root, { recursive: true });
  }
  const image = join(server.dir, "images", "broken");
  const versions = readdirSync(image, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const { name } of versions) renameSync(join(image, name, "rootfs"), join(image, name, "elsewhere"));
}
