import { describe, expect, it } from "vitest";
import { Holdfast, HoldfastError, InvalidRequestError } from "./index.ts";
import { useBench } from "./testing/bench.ts";
import { aDrive, aProcess, json, refuse } from "./testing/faulty-server.ts";

const bench = useBench();

/** Options as a program in JavaScript may pass them. */
const misspelt = { timeout: 5 } as object;

async function* archive(): AsyncGenerator<Uint8Array> {
  yield new Uint8Array(1);
}

/** The arguments in front of the options, for every method that has options; null for methods that have none. */
const ARGUMENTS: Readonly<Record<string, readonly unknown[] | null>> = {
  ...{ "holdfast.logs": [], "holdfast.stats": [], "holdfast.audit": [], "holdfast.lastAudit": [] },
  ...{ "holdfast.backup": ["/b"], "holdfast.lastBackup": [], "holdfast.export": ["sandboxes", "box"] },
  ...{ "holdfast.importSandbox": [archive()], "holdfast.importDrive": [archive()] },
  ...{
    "holdfast.cleanup": [],
    "holdfast.health": [],
    "holdfast.close": null,
    "holdfast.execs.get": ["exe_1"],
  },
  ...{
    "holdfast.sandboxes.create": [],
    "holdfast.sandboxes.getOrCreate": [],
    "holdfast.sandboxes.get": ["box"],
  },
  ...{
    "holdfast.sandboxes.list": [],
    "holdfast.sandboxes.usage": [],
    "holdfast.sandboxes.delete": ["sbx_1"],
  },
  ...{ "holdfast.drives.create": [], "holdfast.drives.getOrCreate": [], "holdfast.drives.get": ["data"] },
  ...{ "holdfast.drives.list": [], "holdfast.drives.delete": ["data"] },
  ...{
    "holdfast.images.list": [],
    "holdfast.images.import": ["i", archive()],
    "holdfast.images.remove": ["i"],
  },
  ...{ "holdfast.events.list": [], "holdfast.events.follow": [] },
  ...{ "holdfast.alerts.list": [], "holdfast.alerts.deliveries": [], "holdfast.alerts.retry": ["dlv_1"] },
  ...{ "box.exec": ["true"], "box.refresh": [], "box.update": [], "box.verify": [], "box.port": null },
  ...{ "box.pause": [], "box.resume": [], "box.standby": [], "box.wake": [], "box.restart": [] },
  ...{ "box.mount": ["data", "/d"], "box.unmount": ["/d"], "box.mounts": [], "box.events": [] },
  ...{ "box.resources": [], "box.diagnose": [], "box.story": [], "box.delete": [] },
  ...{ "box.execs.start": ["true"], "box.execs.get": ["exe_1"], "box.execs.list": [] },
  ...{ "box.checkpoints.create": [], "box.checkpoints.list": [], "box.checkpoints.delete": ["ckp_1"] },
  ...{ "box.previews.create": [80], "box.previews.list": [], "box.previews.get": ["web"] },
  ...{ "box.previews.delete": ["web"], "box.previews.createToken": ["web"], "box.previews.tokens": ["web"] },
  "box.previews.deleteToken": ["web", "t"],
  ...{ "box.processes.start": ["web", "true"], "box.processes.list": [], "box.processes.get": ["web"] },
  ...{ "box.processes.stop": ["web"], "box.processes.restart": ["web"] },
  ...{ "box.files.read": ["/a"], "box.files.readText": ["/a"], "box.files.readStream": ["/a"] },
  ...{ "box.files.write": ["/a", ""], "box.files.list": ["/a"], "box.files.stat": ["/a"] },
  ...{ "box.files.exists": ["/a"], "box.files.mkdir": ["/a"], "box.files.remove": ["/a"] },
  ...{ "box.files.move": ["/a", "/b"], "box.files.search": ["/a"], "box.files.pack": ["/a"] },
  ...{ "box.files.unpack": ["/a", archive()], "box.files.watch": ["/a"] },
  ...{ "run.output": [], "run.result": [], "run.cancel": [], "run.signal": ["SIGINT"] },
  ...{ "run.writeStdin": ["x"], "run.write": ["x"], "run.resize": [{ cols: 1, rows: 1 }] },
  ...{ "process.refresh": [], "process.ready": [], "process.runs": [], "process.output": [] },
  ...{ "process.stop": [], "process.restart": [] },
  ...{ "drive.refresh": [], "drive.update": [], "drive.events": [], "drive.delete": [] },
};

type Method = (...given: unknown[]) => unknown;

/** Returns the methods of an object and of the objects in its properties, each by its path. */
function methodsOf(path: string, of: object): [path: string, method: Method][] {
  const all: [string, Method][] = [];
  for (let at: object = of; at !== Object.prototype; at = Object.getPrototypeOf(at) as object)
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
      if (name === "constructor") continue;
      if (typeof value === "function") all.push([`${path}.${name}`, (value as Method).bind(of)]);
      else if (typeof value === "object" && value !== null) all.push(...methodsOf(`${path}.${name}`, value));
    }
  return all;
}

async function everyMethod(): Promise<[path: string, method: Method][]> {
  const { holdfast, server } = bench;
  const run = await bench.run();
  const box = await bench.box();
  server.answer(json(200, aProcess()));
  const process = await box.processes.get("web");
  server.answer(json(200, aDrive()));
  const drive = await holdfast.drives.get("data");
  // A drive has the same files as a sandbox, by the same class.
  const drives = methodsOf("drive", drive).filter(([path]) => !path.startsWith("drive.files."));
  return [
    ...Object.entries({ holdfast, box, run, process }).flatMap(([path, of]) => methodsOf(path, of)),
    ...drives,
  ];
}

/** Calls the method; if it returns an iterable, also asks for the first item. */
async function call(method: Method, given: readonly unknown[]): Promise<void> {
  const result = await method(...given, misspelt);
  if (typeof result === "object" && result !== null && Symbol.asyncIterator in result)
    await (result as AsyncIterable<unknown>)[Symbol.asyncIterator]().next();
}

describe("an option that a method does not have", () => {
  it("is refused by name and nothing is sent, or it is sent to the server, which refuses it", async () => {
    const methods = await everyMethod();
    expect(methods.map(([path]) => path).sort()).toEqual(Object.keys(ARGUMENTS).sort());
    const { server } = bench;
    for (const [path, method] of methods) {
      const given = ARGUMENTS[path];
      if (!given) continue;
      server.seen.length = 0;
      server.answer(refuse(400, "invalid_request"));
      const error: unknown = await call(method, given).catch((thrown: unknown) => thrown);
      expect(error, path).toBeInstanceOf(HoldfastError);
      const [sent] = server.seen;
      if (sent === undefined) {
        expect(error, path).toBeInstanceOf(InvalidRequestError);
        expect(error, path).toMatchObject({ code: "unknown_option", dispatched: "no", retryable: false });
        expect((error as HoldfastError).message, path).toContain('"timeout"');
      } else {
        const isInBody =
          sent.headers["content-type"] === "application/json" && "timeout" in JSON.parse(`${sent.body}`);
        expect(isInBody || sent.url.searchParams.has("timeout"), path).toBe(true);
      }
    }
  });

  it("is refused in the size of a terminal too", async () => {
    const run = await bench.run();
    const size = { cols: 1, rows: 1, ...misspelt };
    await expect(async () => run.resize(size)).rejects.toThrow('"timeout"');
    expect(bench.server.seen).toEqual([]);
  });

  it("of the client itself is refused too", () => {
    const wrong = { URL: "http://x", url: "http://127.0.0.1:1", apiKey: "x" };
    expect(() => new Holdfast(wrong)).toThrow('"URL"');
  });

  it("may be present if it is undefined", async () => {
    const box = await bench.box();
    expect((await box.refresh({ timeout: undefined } as object)).name).toBe("box");
  });
});
