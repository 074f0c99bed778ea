import type { Drive, Holdfast, Sandbox } from "@holdfast/sdk";
import fc from "fast-check";
import { afterAll, beforeAll, expect, it } from "vitest";
import { isLong } from "../setup/long.ts";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";

const OPERATIONS = Number(process.env.HOLDFAST_DRIVE_OPERATIONS ?? (isLong ? 400 : 150));
/** One in this many operations suspends a sandbox, or kills the server. */
const SLEEP_EVERY = 25;
const KILL_EVERY = 100;

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
});
afterAll(async () => {
  client?.close();
  await server[Symbol.asyncDispose]();
});

/** The expected contents of the drive: file names and texts. */
type Model = Map<string, string>;
const VIEWS = ["exec in one", "exec in other", "files of one", "files of other", "the drive"] as const;
type View = (typeof VIEWS)[number];

/** One way to read and change the drive. */
interface Way {
  write(path: string, text: string): Promise<unknown>;
  read(path: string): Promise<string | null>;
  remove(path: string): Promise<unknown>;
  move(from: string, to: string): Promise<unknown>;
  list(): Promise<string[]>;
}

const quoted = (text: string) => `'${text}'`;

/** Every other command runs as root: each user may change the other's files. */
function byExec(box: Sandbox, mountedAt: string): Way {
  let turn = 0;
  const run = async (command: string) => {
    turn += 1;
    const { stdout, exitCode, stderr } = await box.exec(command, {
      cwd: mountedAt,
      user: turn % 2 === 0 ? "root" : undefined,
    });
    if (exitCode !== 0 && exitCode !== 44) throw new Error(`${command}: ${exitCode} ${stderr}`);
    return exitCode === 44 ? null : stdout;
  };
  return {
    write: (path, text) => run(`mkdir -p $(dirname .${path}) && printf %s ${quoted(text)} > .${path}`),
    read: (path) => run(`test -e .${path} || exit 44; cat .${path}`),
    remove: (path) => run(`rm .${path}`),
    move: (from, to) => run(`mkdir -p $(dirname .${to}) && mv .${from} .${to}`),
    list: async () => ((await run("find . -type f | sed 's/^.//' | sort")) ?? "").split("\n").filter(Boolean),
  };
}

function byFiles(files: Sandbox["files"] | Drive["files"], root: string): Way {
  const at = (path: string) => `${root}${path}`;
  const walk = async (path: string): Promise<string[]> => {
    const { items } = await files.list(at(path) || "/");
    const below = await Promise.all(
      items.map(({ name, kind }) => (kind === "directory" ? walk(`${path}/${name}`) : [`${path}/${name}`])),
    );
    return below.flat();
  };
  return {
    write: (path, text) => files.write(at(path), text),
    read: async (path) => ((await files.exists(at(path))) ? files.readText(at(path)) : null),
    remove: (path) => files.remove(at(path)),
    move: async (from, to) => {
      await files.mkdir(at(to.slice(0, to.lastIndexOf("/"))) || "/");
      await files.move(at(from), at(to), { overwrite: true });
    },
    list: async () => (await walk("")).sort(),
  };
}

type Step =
  | { do: "write"; view: View; path: string; text: string }
  | { do: "remove" | "read"; view: View; path: string }
  | { do: "move"; view: View; path: string; to: string }
  | { do: "list"; view: View };

const view = fc.constantFrom(...VIEWS);
const path = fc.constantFrom("/a", "/b", "/c", "/d/e", "/d/f", "/d/g/h", "/i/j", "/k-l");
const text = fc.stringMatching(/^[a-z0-9 ]{0,40}$/);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ do: fc.constant("write" as const), view, path, text }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("remove" as const), view, path }) },
  { weight: 8, arbitrary: fc.record({ do: fc.constant("read" as const), view, path }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("move" as const), view, path, to: path }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("list" as const), view }) },
);

/** Returns the ways to the drive through the current server. */
async function waysOf(): Promise<{ ways: Record<View, Way>; boxes: [Sandbox, Sandbox] }> {
  const drive = await client.drives.get("shared");
  const [one, other] = [await client.sandboxes.get("one"), await client.sandboxes.get("other")];
  const ways = {
    "exec in one": byExec(one, "/workspace"),
    "exec in other": byExec(other, "/deep/down/here"),
    "files of one": byFiles(one.files, "/workspace"),
    "files of other": byFiles(other.files, "/deep/down/here"),
    "the drive": byFiles(drive.files, ""),
  };
  return { ways, boxes: [one, other] };
}

async function restarted(): Promise<Awaited<ReturnType<typeof waysOf>>> {
  await server.kill("SIGKILL");
  client.close();
  await server.start();
  client = server.client();
  return waysOf();
}

it(`${OPERATIONS} operations of two sandboxes and of the drive itself are visible to each at once, across standby and killed servers`, async () => {
  await client.drives.create({ name: "shared" });
  const mounts = (at: string) => [{ drive: "shared", path: at }];
  await client.sandboxes.create({ name: "one", mounts: mounts("/workspace") });
  await client.sandboxes.create({ name: "other", mounts: mounts("/deep/down/here") });
  const steps = fc.array(step, { minLength: OPERATIONS, maxLength: OPERATIONS });
  const property = fc.asyncProperty(
    steps,
    fc.array(view, { minLength: OPERATIONS, maxLength: OPERATIONS }),
    run,
  );
  await fc.assert(property, { numRuns: 1, endOnFailure: true });
}, 600_000);

async function run(steps: Step[], witnesses: View[]): Promise<void> {
  const model: Model = new Map();
  let { ways, boxes } = await waysOf();
  for (const [index, each] of steps.entries()) {
    if (memoryStandby && index % SLEEP_EVERY === SLEEP_EVERY - 1)
      await boxes[index % 2 === 0 ? 0 : 1].standby();
    if (index % KILL_EVERY === KILL_EVERY - 1) ({ ways, boxes } = await restarted());
    await take(each, model, ways);
    // Another way reads the drive right after the change.
    const witness = ways[witnesses[index] ?? "the drive"];
    if ("path" in each) expect(await witness.read(each.path)).toBe(model.get(each.path) ?? null);
    if (index % 10 === 0) expect(await witness.list()).toEqual([...model.keys()].sort());
  }
  for (const way of Object.values(ways)) expect(await way.list()).toEqual([...model.keys()].sort());
}

async function take(each: Step, model: Model, ways: Record<View, Way>): Promise<void> {
  const way = ways[each.view];
  if (each.do === "list") return expect(await way.list()).toEqual([...model.keys()].sort());
  const at = each.path;
  const known = model.get(at);
  switch (each.do) {
    case "write":
      await way.write(at, each.text);
      model.set(at, each.text);
      return;
    case "read":
      return expect(await way.read(at)).toBe(known ?? null);
    case "remove":
      if (known === undefined) return;
      await way.remove(at);
      model.delete(at);
      return;
    case "move": {
      const { to } = each;
      if (known === undefined || to === at) return;
      await way.move(at, to);
      model.delete(at);
      model.set(to, known);
      return;
    }
  }
}
