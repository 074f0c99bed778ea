import { spawn } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";

const TOP = join(import.meta.dirname, "..", "..");

/**
 * Stand-ins for the machine's programs. They read their instructions from the directory `$at` and record their calls
 * there.
 */
const TOOLS: Record<string, string> = {
  npm: `mkdir -p node_modules/.bin && ln -sf ${process.execPath} node_modules/.bin/node`,
  "apt-get": `
    echo "apt-get $*" >> $at/calls
    case " $* " in
      *" indextargets "*) cat $at/mirrors;;
      *" update "*)
        for each in "$@"; do
          case "$each" in Dir::Etc::SourceList=*) cat "\${each#*=}" >> $at/calls;; esac
        done
        if [ -e $at/no-network ]; then echo "E: Failed to fetch http://me:secret@mirror.test/debian"; exit 100; fi;;
      *" source "*)
        sleep 0.3; mkdir criu-4.9 && : > criu-4.9/Makefile
        tar -czf criu_4.9.orig.tar.gz criu-4.9 && rm -r criu-4.9 && : > criu_4.9.orig.tar.gz.asc;;
      *" install "*" criu "*) cp $at/packaged $at/criu;;
    esac`,
  "apt-cache": "cat $at/policy",
  "dpkg-query": 'echo "Status: install ok installed"',
  make: `echo "make $*" >> $at/calls; mkdir criu && cp $at/built criu/criu`,
};

const MIRRORS = "W: something\ncdrom:[disc]/\nhttp://me:secret@mirror.test/debian/\n";
const works = (version: string) => `#!/bin/sh\necho "Version: ${version}"\n`;
const FAILS_CHECK = `#!/bin/sh\nif [ "$1" = check ]; then echo "Error (a.c:1): not on this kernel"; exit 1; fi\necho "Version: 4.9"\n`;

/** A simulated machine with one PATH and one cache, without any CRIU, and with any number of checkouts. */
function machine() {
  const at = mkdtempSync(join(tmpdir(), "holdfast-setup-criu-"));
  onTestFinished(() => rmSync(at, { recursive: true, force: true }));
  const write = (name: string, content: string) => {
    writeFileSync(join(at, name), content);
    chmodSync(join(at, name), 0o755);
  };
  mkdirSync(join(at, "tools"));
  for (const [name, body] of Object.entries(TOOLS))
    write(join("tools", name), `#!/bin/sh\nat=${at}\n${body}\n`);
  write("mirrors", MIRRORS);
  write("policy", "criu:\n  Installed: (none)\n  Candidate: 3.17.1-2\n");
  write("built", works("4.9"));
  const cache = join(at, "cache");
  const read = (name: string) => (existsSync(join(at, name)) ? readFileSync(join(at, name), "utf8") : "");
  return {
    write,
    remove: (name: string) => rmSync(join(at, name)),
    calls: () => read("calls").split("\n"),
    cached: () => (existsSync(join(cache, "criu")) ? readdirSync(join(cache, "criu")).sort() : []),
    binary: join(cache, "criu", "4.9", "criu"),
    checkout: (name: string) => checkout(at, name),
  };
}

/**
 * A checkout of the scripts with the driver's own search for CRIU; only the lookup of the host's programs is replaced.
 */
function checkout(at: string, name: string) {
  const root = join(at, name);
  const oci = "packages/drivers/oci";
  for (const directory of [`${oci}/machine`, "packages/keeper", "bench"]) {
    mkdirSync(join(root, directory), { recursive: true });
  }
  cpSync(join(TOP, "scripts"), join(root, "scripts"), { recursive: true });
  for (const file of ["checkpoint/find-criu.ts", "proc/errno.ts"])
    cpSync(join(TOP, oci, file), join(root, oci, file));
  writeFileSync(
    join(root, oci, "machine", "runtime.ts"),
    `import { existsSync } from "node:fs";
    export const findBinary = (name: string) => [name, "${at}/" + name].find((path) => path.startsWith("/") && existsSync(path)) ?? null;`,
  );
  writeFileSync(join(root, "packages/keeper/build.mjs"), "");
  for (const file of ["package.json", "package-lock.json"]) {
    writeFileSync(join(root, file), '{"type":"module"}');
  }
  writeFileSync(join(root, ".npmrc"), "");
  return (purpose: "start" | "criu", env: Record<string, string> = {}) =>
    setup(root, purpose, {
      ...process.env,
      PATH: `${join(at, "tools")}:/usr/bin:/bin`,
      HOLDFAST_CACHE: join(at, "cache"),
      HOLDFAST_CRIU: "",
      ...env,
    });
}

async function setup(root: string, purpose: string, env: NodeJS.ProcessEnv) {
  const child = spawn(process.execPath, [join(root, "scripts/setup.mjs"), purpose], { cwd: root, env });
  const exited = new Promise<number>((resolve) => child.once("close", (code) => resolve(code ?? -1)));
  const [code, output] = await Promise.all([exited, text(child.stderr)]);
  // How long a step took depends on the machine.
  const steps = output.replaceAll(/^setup: .*: \d+ s\n/gm, "");
  return { code, output: steps.replace("setup: installing dependencies (npm)\n", "") };
}

test("CRIU is built once per machine, from another suite of the mirror that the machine uses", async () => {
  const { checkout, calls, cached, binary } = machine();
  const first = await checkout("one")("start");
  expect(first.code).toBe(0);
  expect(first.output).toContain(`CRIU 4.9 built: ${binary}`);
  expect(calls().find((line) => line.startsWith("deb-src"))).toMatch(
    /^deb-src (\[signed-by=\S+\] )?http:\/\/me:secret@mirror\.test\/debian\/ unstable main$/,
  );
  expect(cached()).toEqual(["4.9"]);
  const made = calls().length;
  expect(await checkout("two")("start")).toEqual({ code: 0, output: "" });
  expect(calls()).toHaveLength(made);
});

test("the distribution's CRIU is installed if it is new enough", async () => {
  const { checkout, calls, cached, write } = machine();
  write("policy", "criu:\n  Installed: (none)\n  Candidate: 4.1.1-1\n");
  write("packaged", works("4.1.1"));
  const { code, output } = await checkout("one")("start");
  expect({ code, output }).toEqual({
    code: 0,
    output: "setup: installing from the distribution: criu (standby with memory)\n",
  });
  expect(calls().filter((line) => line.startsWith("make"))).toEqual([]);
  expect(cached()).toEqual([]);
});

test("without a network a start continues and reports why, the next start does not retry, and an explicit request does", async () => {
  const { checkout, calls, cached, write, remove } = machine();
  write("no-network", "");
  const set = checkout("one");
  const first = await set("start");
  expect(first.code).toBe(0);
  expect(first.output).toContain("no standby with memory on this host");
  expect(first.output).toContain("Failed to fetch http://mirror.test");
  expect(first.output).not.toContain("secret");
  const tried = calls().length;
  const second = await set("start");
  expect(second.code).toBe(0);
  expect(second.output).toContain("node scripts/setup.mjs criu");
  expect(calls()).toHaveLength(tried);
  expect((await set("criu")).code).toBe(1);
  remove("no-network");
  expect((await set("criu")).code).toBe(0);
  expect(cached()).toEqual(["4.9"]);
});

test("a build that fails its check is not kept, and the other suite is tried", async () => {
  const { checkout, calls, cached, write } = machine();
  write("built", FAILS_CHECK);
  const { code, output } = await checkout("one")("start");
  expect(code).toBe(0);
  expect(output).toContain("not on this kernel");
  expect(calls().filter((line) => line.startsWith("deb-src"))).toEqual([
    expect.stringMatching(/ unstable main$/),
    expect.stringMatching(/ stable main$/),
  ]);
  expect(cached()).toEqual(["failed.json"]);
});

test("a cached CRIU that no longer works is replaced", async () => {
  const { checkout, cached, binary, write } = machine();
  const set = checkout("one");
  await set("start");
  writeFileSync(binary, "#!/bin/sh\nexit 127\n");
  write("built", works("4.9"));
  expect((await set("start")).output).toContain("CRIU 4.9 built");
  expect(readFileSync(binary, "utf8")).toBe(works("4.9"));
  expect(cached()).toEqual(["4.9"]);
});

test("two checkouts that are set up at once build once", async () => {
  const { checkout, calls, cached } = machine();
  const both = await Promise.all([checkout("one")("start"), checkout("two")("start")]);
  expect(both.map(({ code }) => code)).toEqual([0, 0]);
  expect(calls().filter((line) => line.startsWith("make"))).toHaveLength(1);
  expect(cached()).toEqual(["4.9"]);
});

test("on a distribution other than Debian nothing is built, and the start continues", async () => {
  const { checkout, calls, write } = machine();
  write("mirrors", "");
  const { code, output } = await checkout("one")("start");
  expect(code).toBe(0);
  expect(output).toContain("this host's packages are not Debian's");
  expect(calls().filter((line) => line.includes("source"))).toEqual([]);
});

test("a configured CRIU is not replaced", async () => {
  const { checkout, calls, write } = machine();
  write("old", works("3.17.1"));
  const { code, output } = await checkout("one")("start", { HOLDFAST_CRIU: "old" });
  expect(code).toBe(0);
  expect(output).toContain("has version 3.17.1");
  expect(calls()).toEqual([""]);
});
