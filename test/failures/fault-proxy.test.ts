import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { FaultProxy, type Place } from "../support/faults/fault-proxy.ts";
import { Random } from "../support/faults/random.ts";

const until = (check: () => void) => vi.waitFor(check, { timeout: 15_000, interval: 10 });

/** One end of a connection, with the bytes it received and how it ended. */
class Side {
  readonly socket: Socket;
  received = Buffer.alloc(0);
  how: "open" | "end" | "reset" = "open";

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (data) => {
      this.received = Buffer.concat([this.received, data]);
    });
    socket.on("end", () => {
      this.how = "end";
    });
    socket.on("error", () => {
      this.how = "reset";
    });
  }

  say(data: string | Buffer): void {
    this.socket.write(data);
  }

  get text(): string {
    return this.received.toString();
  }
}

/** A listener, a proxy in front of it, and a connection through both. */
async function through(kind: "tcp" | "unix") {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-proxy-"));
  const served: Side[] = [];
  const server = createServer({ allowHalfOpen: true }, (socket) => void served.push(new Side(socket)));
  const path = join(dir, "target.sock");
  server.listen(kind === "unix" ? path : { host: "127.0.0.1", port: 0 });
  await once(server, "listening");
  const address = server.address();
  const target: Place =
    typeof address === "object" && address !== null ? { host: "127.0.0.1", port: address.port } : { path };
  const at: Place = kind === "unix" ? { path: join(dir, "proxy.sock") } : { host: "127.0.0.1", port: 0 };
  const proxy = await FaultProxy.start(target, { at, seed: 7 });
  const clients: Side[] = [];
  const dial = async () => {
    const place: Place = "path" in at ? at : { host: "127.0.0.1", port: Number(new URL(proxy.url).port) };
    const socket = connect({ ...place, allowHalfOpen: true });
    const client = new Side(socket);
    await once(socket, "connect");
    clients.push(client);
    return client;
  };
  const open = async () => {
    const client = await dial();
    await until(() => expect(served).toHaveLength(clients.length));
    return { client, peer: served.at(-1) as Side };
  };
  onTestFinished(async () => {
    for (const { socket } of [...clients, ...served]) socket.destroy();
    server.close();
    await proxy[Symbol.asyncDispose]();
    rmSync(dir, { recursive: true });
  });
  return { proxy, dial, open, server };
}

describe.each(["tcp", "unix"] as const)("a proxy on %s", (kind) => {
  it("passes bytes and ends in both directions, and counts them", async () => {
    const { proxy, open } = await through(kind);
    const { client, peer } = await open();
    const data = randomBytes(3_000_000);
    client.socket.end(data);
    await until(() => expect(peer.how).toBe("end"));
    expect(createHash("sha256").update(peer.received).digest()).toEqual(
      createHash("sha256").update(data).digest(),
    );
    peer.socket.end("heard");
    await until(() => expect(client.how).toBe("end"));
    expect(client.text).toBe("heard");
    expect(proxy.tally).toMatchObject({
      accepted: 1,
      up: { bytes: data.length, swallowed: 0 },
      down: { bytes: 5, swallowed: 0 },
    });
    await until(() => expect(proxy.tally.open).toBe(0));
  });

  it("delays one direction and keeps its order, on existing connections and on new ones", async () => {
    const { proxy, open } = await through(kind);
    const sides = [await open()];
    proxy.set("up", { delayMs: 300, jitterMs: 200 });
    sides.push(await open());
    for (const { client, peer } of sides) {
      const startedAt = performance.now();
      peer.say("down");
      await until(() => expect(client.text).toBe("down"));
      for (let i = 0; i < 10; i += 1) {
        client.say(String(i));
        await sleep(1);
      }
      await until(() => expect(peer.text).toBe("0123456789"));
      expect(performance.now() - startedAt).toBeGreaterThan(290);
    }
    proxy.heal();
  });

  it("that is half-open reads everything and delivers nothing, neither an end nor a reset; the other direction continues", async () => {
    const { proxy, open } = await through(kind);
    const { client, peer } = await open();
    client.say("before");
    await until(() => expect(peer.text).toBe("before"));
    proxy.set("up", { halfOpen: true });
    client.say(Buffer.alloc(2_000_000));
    await until(() => expect(proxy.tally.up.swallowed).toBe(2_000_000));
    peer.say("still here");
    await until(() => expect(client.text).toBe("still here"));
    client.socket.end();
    proxy.cut();
    proxy.reset();
    await sleep(200);
    expect([peer.text, peer.how, client.how]).toEqual(["before", "open", "open"]);
    expect(proxy.tally.open).toBe(1);
  });

  it("that is healed serves new connections and those that lost nothing, but none that lost bytes", async () => {
    const { proxy, open } = await through(kind);
    const [holed, whole] = [await open(), await open()];
    proxy.set("both", { halfOpen: true });
    holed.client.say("lost");
    await until(() => expect(proxy.tally.up.swallowed).toBe(4));
    proxy.heal();
    const fresh = await open();
    for (const { client } of [holed, whole, fresh]) client.say("again");
    holed.peer.say("are you there?");
    await until(() => expect([whole.peer.text, fresh.peer.text]).toEqual(["again", "again"]));
    expect([holed.peer.text, holed.client.text]).toEqual(["", ""]);
  });

  it("cuts with an end, in both directions or one", async () => {
    const { proxy, open } = await through(kind);
    const first = await open();
    proxy.cut("down");
    await until(() => expect(first.client.how).toBe("end"));
    first.client.say("still");
    await until(() => expect(first.peer.text).toBe("still"));
    expect(first.peer.how).toBe("open");
    proxy.cut();
    await until(() => expect(first.peer.how).toBe("end"));
  });

  it("throttles to a rate, and makes the sender wait", async () => {
    const { proxy, open } = await through(kind);
    const { client, peer } = await open();
    proxy.set("down", { bytesPerSecond: 1_000_000 });
    const startedAt = performance.now();
    peer.say(Buffer.alloc(1_000_000));
    await until(() => expect(client.received.length).toBe(1_000_000));
    expect(performance.now() - startedAt).toBeGreaterThan(800);
    proxy.set("down", { bytesPerSecond: 0 });
    peer.say(Buffer.alloc(8_000_000));
    await sleep(300);
    expect(client.received.length).toBeLessThan(1_100_000);
    expect(peer.socket.writableLength).toBeGreaterThan(5_000_000);
    proxy.heal();
    await until(() => expect(client.received.length).toBe(9_000_000));
  });

  it("refuses new connections on request, keeps existing ones, and accepts new ones again", async () => {
    const { proxy, open } = await through(kind);
    const { client, peer } = await open();
    await proxy.refuse(true);
    await expect(open()).rejects.toMatchObject({ code: "ECONNREFUSED" });
    client.say("kept");
    await until(() => expect(peer.text).toBe("kept"));
    await proxy.refuse(false);
    const later = await open();
    later.client.say("back");
    await until(() => expect(later.peer.text).toBe("back"));
  });

  it("resets a sender whose receiver has disconnected without reading", async () => {
    const { proxy, open } = await through(kind);
    const { client, peer } = await open();
    client.socket.pause();
    peer.say(Buffer.alloc(16_000_000));
    await sleep(200);
    expect(peer.how).toBe("open");
    client.socket.destroy();
    await until(() => expect(peer.how).not.toBe("open"));
    await until(() => expect(peer.socket.destroyed).toBe(true));
    await until(() => expect(proxy.tally.open).toBe(0));
  });

  it("closes its client's connection if the target does not listen", async () => {
    const { dial, server } = await through(kind);
    server.close();
    const client = await dial();
    await until(() => expect(client.how).toBe(kind === "tcp" ? "reset" : "end"));
  });
});

it("a reset arrives at the chosen sides, and nothing at the other", async () => {
  const { proxy, open } = await through("tcp");
  const first = await open();
  proxy.reset("down");
  await until(() => expect(first.client.how).toBe("reset"));
  await sleep(100);
  expect(first.peer.how).toBe("open");
  const second = await open();
  proxy.reset();
  await until(() => expect([second.client.how, second.peer.how]).toEqual(["reset", "reset"]));
});

it("applies a fault to a share of the connections, the same for the same seed", async () => {
  const hits = async () => {
    const { proxy, open } = await through("tcp");
    const sides = [];
    for (let i = 0; i < 20; i += 1) sides.push(await open());
    proxy.reset("both", 0.5);
    await sleep(200);
    return sides.map(({ client }) => client.how);
  };
  const first = await hits();
  expect(new Set(first)).toEqual(new Set(["open", "reset"]));
  expect(await hits()).toEqual(first);
  const random = new Random(3);
  expect([random.next(), random.next()]).not.toEqual([random.next(), random.next()]);
});
