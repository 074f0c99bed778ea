import { execFile, execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { layRoot } from "./rootfs.ts";

const run = promisify(execFile);

/** One container under bare runc, to measure `runc exec`. */
export class Runc implements Disposable {
  readonly #dir = mkdtempSync(join(tmpdir(), "holdfast-bench-runc-"));
  readonly #id = `holdfast-bench-${process.pid}`;

  constructor() {
    const bundle = join(this.#dir, "bundle");
    mkdirSync(bundle);
    layRoot(join(bundle, "rootfs"));
    execFileSync("runc", ["spec", "-b", bundle]);
    const config = JSON.parse(readFileSync(join(bundle, "config.json"), "utf8"));
    config.process.args = ["/bin/sleep", "100000"];
    config.process.terminal = false;
    config.root.readonly = false;
    config.mounts.push({ destination: "/usr", type: "bind", source: "/usr", options: ["rbind", "ro"] });
    config.linux.cgroupsPath = `/${this.#id}`;
    writeFileSync(join(bundle, "config.json"), JSON.stringify(config));
    execFileSync("runc", ["--root", join(this.#dir, "state"), "run", "-d", "-b", bundle, this.#id], {
      stdio: "ignore",
    });
  }

  exec(...command: string[]): Promise<unknown> {
    return run("runc", ["--root", join(this.#dir, "state"), "exec", this.#id, ...command]);
  }

  [Symbol.dispose](): void {
    execFileSync("runc", ["--root", join(this.#dir, "state"), "delete", "-f", this.#id], { stdio: "ignore" });
    rmSync(this.#dir, { recursive: true, force: true });
  }
}
