/** Port streams during memory standby, with the real CRIU of this host. */
import { once } from "node:events";
import type { Duplex } from "node:stream";
import { finished } from "node:stream/promises";
import { DEFAULT_RESOURCES, newCheckpointId, newSandboxId, type SandboxId } from "@holdfast/contract";
import type { Instance, Link } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { exchange, never, runEcho, runServer } from "../../contract-suite/port-suite.ts";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { findCriu } from "../checkpoint/find-criu.ts";
import { countSockets } from "../proc/proc-files.ts";
import { processOf, type TestMachine, testMachine } from "../testing/test-machine.ts";

const found = await findCriu();
const soon = () => AbortSignal.timeout(40_000);
let machine: TestMachine;
const ids: SandboxId[] = [];
const links: Link[] = [];

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  for (const link of links.splice(0)) link.close();
  for (const id of ids.splice(0)) {
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    await machine.driver.destroy(id, soon());
  }
});
afterAll(() => machine?.dispose());

const connect = async (instance: Instance): Promise<Link> => {
  const link = await machine.driver.connect(instance, soon());
  links.push(link);
  return link;
};

async function launch(): Promise<[Instance, Link]> {
  const sandboxId = newSandboxId();
  ids.push(sandboxId);
  const instance = await machine.driver.launch(orderFor(sandboxId), soon());
  return [instance, await connect(instance)];
}

const dial = async (instance: Instance, port: number): Promise<Duplex> =>
  (await machine.driver.dial(instance, port, never)).bytes;

/** Suspends and wakes an instance, as the engine does: links are closed first, port streams stay open. */
async function cycle({ sandboxId, generation }: Instance): Promise<[Instance, Link]> {
  const { driver } = machine;
  for (const link of links.splice(0)) link.close();
  await driver.freeze(sandboxId, soon());
  const checkpoint = await driver.checkpoint({ sandboxId, generation, id: newCheckpointId() }, soon());
  await driver.stop(sandboxId, { graceMs: 0 }, soon());
  const { name, image } = orderFor(sandboxId);
  const order = { sandboxId, name, image, resources: DEFAULT_RESOURCES, checkpoint };
  const next = await driver.restore({ ...order, generation: generation + 1 }, soon());
  await driver.thaw(sandboxId, soon());
  await driver.discard(sandboxId, null, soon());
  return [next, await connect(next)];
}

/**
 * Server with a behaviour per port. 8101 accepts and reads nothing, 8102 sends 100 kB and ends, 8103 sends without end,
 * 8104 accepts no connection.
 */
const ODD = `
import socket, threading, time
def listen(port, backlog=64):
  s = socket.socket()
  s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  s.bind(("127.0.0.1", port))
  s.listen(backlog)
  return s
kept = []
def serve(port, act):
  s = listen(port)
  def loop():
    while True:
      connection = s.accept()[0]
      kept.append(connection)
      threading.Thread(target=quietly, args=(act, connection), daemon=True).start()
  threading.Thread(target=loop, daemon=True).start()
def quietly(act, connection):
  try: act(connection)
  except OSError: pass
def end(connection):
  connection.sendall(b"x" * 100000)
  connection.shutdown(socket.SHUT_WR)
def talk(connection):
  while True: connection.sendall(b"x" * 65536)
serve(8101, lambda connection: None)
serve(8102, end)
serve(8103, talk)
full = listen(8104, 0)
print("ready", flush=True)
time.sleep(1000)
`;

/** Opens one stream in each state that a checkpoint may find. */
async function allKinds(instance: Instance): Promise<Duplex[]> {
  const idle = await dial(instance, 8_080);
  const spoken = await dial(instance, 8_080);
  spoken.write("hello");
  await once(spoken, "data");
  const stuckInside = await dial(instance, 8_101);
  stuckInside.write(Buffer.alloc(4_000_000));
  const halfInside = await dial(instance, 8_102);
  halfInside.resume();
  await once(halfInside, "end");
  const halfOutside = await dial(instance, 8_101);
  halfOutside.end("everything");
  const stuckOutside = await dial(instance, 8_103);
  const busy = await dial(instance, 8_103);
  busy.resume();
  const notAccepted = await dial(instance, 8_104);
  notAccepted.write("hello?");
  return [idle, spoken, stuckInside, halfInside, halfOutside, stuckOutside, busy, notAccepted];
}

describe.skipIf(!("path" in found))("standby", () => {
  test("cuts streams in every state, and listeners can be dialled after the wake", async () => {
    let [instance, link] = await launch();
    await runEcho(link, 8_080);
    await runServer(link, ODD);
    for (let round = 0; round < 3; round++) {
      const streams = await allKinds(instance);
      const dialling = Array.from({ length: 3 }, () => dial(instance, 8_104).then(() => {}));
      const cut = streams.map((stream) =>
        expect(finished(stream)).rejects.toMatchObject({ name: "StreamCut" }),
      );
      const settled = Promise.allSettled(dialling);
      [instance, link] = await cycle(instance);
      await Promise.all(cut);
      for (const { status } of await settled) expect(status).toBe("rejected");
      expect(countSockets(processOf(instance).pid)).toBe(2);
      expect(await exchange(await dial(instance, 8_080), "hello again")).toBe("hello again");
      const ended = await dial(instance, 8_102);
      expect((await exchange(ended, "")).length).toBe(100_000);
      expect(await run(link, "echo fine")).toEqual({ exitCode: 0, output: "fine\n" });
    }
  }, 120_000);

  test("is not delayed by streams that are dialled during the dump", async () => {
    const [first, link] = await launch();
    await runEcho(link, 8_080);
    let over = false;
    const outcomes = new Map<string, number>();
    const dialler = async (): Promise<void> => {
      while (!over) {
        const { bytes } = await machine.driver.dial(first, 8_080, soon());
        await exchange(bytes, "hello");
      }
    };
    const diallers = Array.from({ length: 8 }, () =>
      dialler().catch((error: Error) => outcomes.set(error.name, (outcomes.get(error.name) ?? 0) + 1)),
    );
    await new Promise((resolve) => setTimeout(resolve, 100));
    const [second] = await cycle(first);
    over = true;
    await Promise.all(diallers);
    for (const name of outcomes.keys()) expect(["LinkLost", "StreamCut", "KeeperRefusal"]).toContain(name);
    expect(await exchange(await dial(second, 8_080), "awake")).toBe("awake");
    await expect(dial(first, 8_080)).rejects.toMatchObject({ reason: "stale_generation" });
  }, 60_000);

  test("a named checkpoint cuts streams too, and the sandbox keeps running and can be dialled", async () => {
    const [instance, link] = await launch();
    await runEcho(link, 8_080);
    const stream = await dial(instance, 8_080);
    const cut = expect(finished(stream)).rejects.toMatchObject({ name: "StreamCut" });
    for (const each of links.splice(0)) each.close();
    const { sandboxId, generation } = instance;
    const saved = { sandboxId, generation, id: newCheckpointId(), journals: [], maxBytes: 1 << 30 };
    await machine.driver.freeze(sandboxId, soon());
    await machine.driver.save({ ...saved, kind: "memory" }, soon());
    await machine.driver.thaw(sandboxId, soon());
    await cut;
    expect(await exchange(await dial(instance, 8_080), "hello")).toBe("hello");
    const kept = await dial(instance, 8_080);
    await machine.driver.freeze(sandboxId, soon());
    await machine.driver.save({ ...saved, id: newCheckpointId(), kind: "files" }, soon());
    await machine.driver.thaw(sandboxId, soon());
    expect(await exchange(kept, "files only")).toBe("files only");
  }, 60_000);
});
