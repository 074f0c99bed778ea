import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";

const module = (name: string): string => JSON.stringify(pathToFileURL(`${import.meta.dirname}/${name}`).href);

/** Report of a driver that ran a sandbox and a fork made from its memory. */
interface ForkReport {
  support: { kind: string; why: string | null };
  /** Codes of the problems that the driver observed: first those of the sandbox, then those of its fork. */
  problems: string[][];
  /** Number of mounts inside the sandbox that propagate mounts, or receive propagated mounts. */
  propagating: number;
  /** Lines of the fork's /proc/PID/cgroup that name the installation. */
  cgroups: string[];
  left: unknown[];
}

/**
 * A program that runs a sandbox, saves its memory, and runs a fork of it, with a driver in the program's own process.
 */
const PROGRAM = `
  import { readFileSync, rmSync, writeSync } from "node:fs";
  import { DEFAULT_IMAGE, DEFAULT_RESOURCES, newCheckpointId, newSandboxId } from "@holdfast/contract";
  import { systemClock } from "@holdfast/engine";
  import { createOciDriver } from ${module("../open-driver.ts")};
  import { silent } from ${module("test-machine.ts")};
  const { stateDir, installation, runtime } = JSON.parse(process.argv[1]);
  const soon = () => AbortSignal.timeout(40_000);
  const options = { stateDir, installation, runtime, log: silent, clock: systemClock };
  const { driver } = await createOciDriver(options);
  const [id, fork] = [newSandboxId(), newSandboxId()];
  const made = { image: DEFAULT_IMAGE, resources: DEFAULT_RESOURCES, restart: false };
  const codesOf = async (sandbox) => {
    const seen = (await driver.observe([sandbox], soon())).get(sandbox);
    return seen.seen === "present" ? seen.problems.map(({ code }) => code) : [seen.seen];
  };
  const proc = (instance, file) => readFileSync("/proc/" + driver.describe(instance.identity).pid + "/" + file, "utf8");
  const report = { support: driver.support, problems: [], propagating: 0, cgroups: [], left: [] };
  try {
    const first = await driver.launch({ ...made, sandboxId: id, name: "first", generation: 1 }, soon());
    (await driver.connect(first, soon())).close();
    report.problems.push(await codesOf(id));
    report.propagating = (proc(first, "mountinfo").match(/ (shared|master):/g) ?? []).length;
    await driver.freeze(id, soon());
    const saved = { sandboxId: id, generation: 1, id: newCheckpointId(), kind: "memory" };
    await driver.save({ ...saved, journals: [], maxBytes: 2 ** 30 }, soon());
    const second = await driver.launch({ ...made, sandboxId: fork, name: "fork", generation: 2, fork: saved }, soon());
    (await driver.connect(second, soon())).close();
    report.problems.push(await codesOf(fork));
    report.cgroups = proc(second, "cgroup").split("\\n").filter((line) => line.includes(installation));
  } finally {
    for (const sandbox of [id, fork]) {
      await driver.stop(sandbox, { graceMs: 0 }, soon());
      await driver.destroy(sandbox, soon());
    }
    report.left = await driver.list(soon());
    await driver.close();
    rmSync(stateDir, { recursive: true, force: true });
  }
  writeSync(1, JSON.stringify(report));
`;

/**
 * Shell commands that unmount the sandboxes and drives of other tests. The program's mount namespace contains copies of
 * their mounts, which would keep the other tests' disks in use.
 */
const LEAVE_OTHERS = `for at in $(grep -o ' /[^ ]*/holdfast-[^ ]* ' /proc/self/mountinfo | tac); do umount -l $at; done`;

interface Order {
  stateDir: string;
  installation: string;
  runtime: string;
}

/**
 * Runs the program in a mount namespace of its own. The shell commands in `prepare` run there first, and may change its
 * mounts. The commands in `clean` run afterwards in any case.
 */
export async function forkInOwnMounts(
  order: Order,
  { prepare, clean }: { prepare: string; clean: string },
): Promise<ForkReport> {
  const script = `${LEAVE_OTHERS}\n( set -e\n${prepare}\n) && "$@"; code=$?\n${clean}\nexit $code`;
  const program = [process.execPath, "--input-type=module", "-e", PROGRAM, JSON.stringify(order)];
  const argv = ["--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", ...program];
  const child = spawn("unshare", argv, { cwd: import.meta.dirname, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  let errors = "";
  child.stdout.on("data", (chunk) => {
    output += String(chunk);
  });
  child.stderr.on("data", (chunk) => {
    errors += String(chunk);
  });
  const code = await new Promise((resolve) => child.once("close", resolve));
  if (code !== 0) throw new Error(`the driver ended with ${code}: ${errors.slice(-2_000)}`);
  return JSON.parse(output) as ForkReport;
}
