import { once } from "node:events";
import { describe, expect, it } from "vitest";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";
import { codeOf, eventually, signal, testEngine } from "../testing/test-engine.ts";

async function listening(numbers = {}) {
  const made = await testEngine(numbers);
  await made.create("one");
  made.driver.echoes.add(3000);
  return made;
}

describe("a port", () => {
  it("is reached, and returns what is sent", async () => {
    const { engine } = await listening();
    const { bytes } = await engine.ports.connect("one", 3000, signal);
    bytes.write("hello");
    expect(String((await once(bytes, "data"))[0])).toBe("hello");
    expect(engine.ports.open).toBe(1);
    bytes.destroy();
    await eventually(() => expect(engine.ports.open).toBe(0));
  });

  it("without a listener is reported as closed, and nothing was dispatched", async () => {
    const { engine } = await listening();
    await expect(engine.ports.connect("one", 4000, signal)).rejects.toMatchObject({
      code: "port_closed",
      dispatched: "no",
      message: "Nothing listens on port 4000 of the sandbox.",
    });
    expect(engine.ports.open).toBe(0);
  });

  it.each<[what: string, error: Error, code: string]>([
    ["accepts no connection", new KeeperRefusal("system", "timed out", "ETIMEDOUT"), "port_silent"],
    ["has too many streams", new KeeperRefusal("limit", "too many"), "too_many_streams"],
    ["has an old keeper", new KeeperRefusal("unknown_type", "?"), "not_supported"],
  ])("that %s is rejected with its own error", async (_what, error, code) => {
    const { engine, driver } = await listening();
    driver.faults = { dial: () => Promise.reject(error) };
    expect(await codeOf(engine.ports.connect("one", 3000, signal))).toBe(code);
  });

  it("is dialled again if the connection breaks before any byte was sent", async () => {
    const { engine, driver } = await listening();
    let failures = 2;
    driver.faults = {
      dial: async () => {
        if (failures-- > 0) throw new LinkLost("broken", "no");
      },
    };
    const { bytes } = await engine.ports.connect("one", 3000, signal);
    bytes.destroy();
    driver.faults = { dial: () => Promise.reject(new LinkLost("broken", "no")) };
    expect(await codeOf(engine.ports.connect("one", 3000, signal))).toBe("link_lost");
  });

  it("is not served by a process other than the keeper", async () => {
    const { engine, driver } = await listening();
    driver.faults = { impostor: () => "somebody" };
    await expect(engine.ports.connect("one", 3000, signal)).rejects.toMatchObject({
      code: "link_lost",
      message: "A process other than the keeper answered.",
    });
  });

  it("that never answers the dial times out", async () => {
    const { engine, driver } = await listening({ portConnectMs: 50 });
    driver.faults = { dial: () => new Promise(() => undefined) };
    expect(await codeOf(engine.ports.connect("one", 3000, signal))).toBe("deadline");
  });

  it("of a sandbox in standby wakes it, once for all callers", async () => {
    const { engine } = await listening();
    await engine.sandboxes.standby("one", signal);
    const all = await Promise.all([1, 2, 3].map(() => engine.ports.connect("one", 3000, signal)));
    expect(await engine.sandboxes.get("one")).toMatchObject({ status: "ready", generation: 2 });
    for (const { bytes } of all) bytes.destroy();
  });

  it("of a paused sandbox is rejected with a hint to resume it", async () => {
    const { engine } = await listening();
    await engine.sandboxes.pause("one", signal);
    expect(await codeOf(engine.ports.connect("one", 3000, signal))).toBe("wrong_state");
  });
});

describe("a connection to a port", () => {
  const idle = { maintainEveryMs: 20, portTouchEveryMs: 0 };
  const asleep = async (engine: Awaited<ReturnType<typeof testEngine>>["engine"]) =>
    (await engine.sandboxes.get("one")).status;

  it("keeps its sandbox awake until it is answered, and then by traffic only", async () => {
    const { engine } = await listening(idle);
    await engine.sandboxes.update("one", { lifecycle: { idleStandbyMs: 1_000 } });
    const connection = await engine.ports.connect("one", 3000, signal);
    await new Promise((resolve) => setTimeout(resolve, 1_300));
    expect(await asleep(engine)).toBe("ready");
    connection.settled();
    for (let times = 0; times < 6; times += 1) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      connection.used();
    }
    expect(await asleep(engine)).toBe("ready");
    await eventually(async () => expect(await asleep(engine)).toBe("standby"));
    connection.bytes.destroy();
  });

  it("is closed by its signal", async () => {
    const { engine } = await listening();
    const leaving = new AbortController();
    const { bytes } = await engine.ports.connect("one", 3000, leaving.signal);
    bytes.on("error", () => undefined);
    leaving.abort();
    await eventually(() => expect(engine.ports.open).toBe(0));
    expect(bytes.destroyed).toBe(true);
  });
});
