/** Port tests of the contract suite, and helpers for other tests of ports. */
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import type { Duplex } from "node:stream";
import { finished, pipeline } from "node:stream/promises";
import { newExecId } from "@holdfast/contract";
import type { CapabilityName, Driver, DriverCapabilities, Instance, Link } from "@holdfast/engine";
import { describe, expect, test } from "vitest";

const CALL_MS = 20_000;
const MIB = 1_048_576;
const soon = (): AbortSignal => AbortSignal.timeout(CALL_MS);
export const never = new AbortController().signal;

/** A Python program: a server that sends back everything it receives on each connection. */
const ECHO = `
import asyncio, sys
async def echo(reader, writer):
  while data := await reader.read(65536):
    writer.write(data)
    await writer.drain()
  writer.close()
async def main():
  server = await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1]), backlog=512)
  print("ready", flush=True)
  await server.serve_forever()
asyncio.run(main())
`;

/** Starts a Python program in the sandbox, and waits until it prints `ready`. */
export async function runServer(link: Link, code: string, ...args: (string | number)[]): Promise<void> {
  const id = newExecId();
  const order = {
    id,
    argv: ["python3", "-c", code, ...args.map(String)],
    env: { PATH: "/usr/bin:/bin" },
    cwd: "/",
    user: "",
    timeoutMs: 0,
    stdin: false,
    tty: null,
    journalCapBytes: MIB,
    digest: "0".repeat(64),
  };
  await link.startExec(order, soon());
  const { records } = await link.readExec(id, { cursor: 0, maxBytes: MIB, waitMs: 15_000 }, soon());
  const output = Buffer.concat(records.map(({ data }) => data)).toString();
  if (output !== "ready\n") throw new Error(`the server inside printed: ${output}`);
}

export const runEcho = (link: Link, port: number): Promise<void> => runServer(link, ECHO, port);

/** Sends the text, ends the stream, and returns everything that the other side sends back. */
export async function exchange(stream: Duplex, text: string): Promise<string> {
  stream.end(text);
  let heard = "";
  for await (const chunk of stream) heard += chunk;
  return heard;
}

async function digest(bytes: AsyncIterable<Uint8Array>): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of bytes) hash.update(chunk);
  return hash.digest("hex");
}

interface Given {
  driver(): Driver;
  use<Name extends CapabilityName>(name: Name): NonNullable<DriverCapabilities[Name]>;
  launch(): Promise<Instance>;
  connect(instance: Instance): Promise<Link>;
}

export function describePorts({ driver, use, launch, connect }: Given): void {
  describe("ports", () => {
    const dial = async (instance: Instance, port: number, signal = never) =>
      (await use("ports").dial(instance, port, signal)).bytes;

    test("a listening program is reached through the same keeper as the link", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const { bootId, bytes } = await use("ports").dial(instance, 8_080, never);
      expect(bootId).toBe(link.keeper.bootId);
      expect(await exchange(bytes, "hello")).toBe("hello");
    });

    test("64 MB are transferred in both directions at once without a change", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const bytes = await dial(instance, 8_080);
      const block = randomBytes(MIB);
      const blocks = () => Array.from({ length: 64 }, (_, index) => block.subarray(index));
      async function* all() {
        yield* blocks();
      }
      const [, heard, wanted] = await Promise.all([pipeline(all, bytes), digest(bytes), digest(all())]);
      expect(heard).toBe(wanted);
      await link.ping(soon());
    }, 60_000);

    test("a port without a listener inside is refused, even if a program on the host listens on it", async () => {
      const instance = await launch();
      const host = createServer().listen(0, "127.0.0.1");
      await once(host, "listening");
      const { port } = host.address() as AddressInfo;
      await expect(dial(instance, port)).rejects.toMatchObject({ reason: "system", errno: "ECONNREFUSED" });
      await new Promise((closed) => host.close(closed));
    });

    test("256 concurrent streams are served, one more is refused, and links still work", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const streams = await Promise.all(Array.from({ length: 256 }, () => dial(instance, 8_080)));
      await expect(dial(instance, 8_080)).rejects.toMatchObject({ reason: "limit" });
      await (await connect(instance)).ping(soon());
      const heard = await Promise.all(streams.map((stream, index) => exchange(stream, `stream ${index}`)));
      expect(heard).toEqual(streams.map((_, index) => `stream ${index}`));
      expect(await exchange(await dial(instance, 8_080), "again")).toBe("again");
    }, 60_000);

    test("a stream is cut when its signal aborts or its sandbox stops", async () => {
      const instance = await launch();
      await runEcho(await connect(instance), 8_080);
      const abort = new AbortController();
      const [wanted, unwanted] = await Promise.all([
        dial(instance, 8_080),
        dial(instance, 8_080, abort.signal),
      ]);
      abort.abort(new Error("no longer wanted"));
      await expect(finished(unwanted)).rejects.toThrow("no longer wanted");
      wanted.write("still here");
      expect(String((await once(wanted, "data"))[0])).toBe("still here");
      const over = expect(finished(wanted)).rejects.toMatchObject({ name: "StreamCut" });
      await driver().stop(instance.sandboxId, { graceMs: 0 }, soon());
      await over;
      await expect(dial(instance, 8_080)).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
    });

    test("a stream of a frozen sandbox continues after the thaw", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const bytes = await dial(instance, 8_080);
      await use("freezer").freeze(instance.sandboxId, soon());
      const heard = exchange(bytes, "hello");
      await use("freezer").thaw(instance.sandboxId, soon());
      expect(await heard).toBe("hello");
    });
  });
}
