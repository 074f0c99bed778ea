/** What every driver owes of ports: part of the suite, and what other tests of ports begin with. */
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import type { Duplex } from "node:stream";
import { finished, pipeline } from "node:stream/promises";
import { newExecId } from "@holdfast/contract";
import type { Driver, Instance, Link } from "@holdfast/engine";
import { describe, expect, test } from "vitest";

const CALL_MS = 20_000;
const MIB = 1_048_576;
const soon = (): AbortSignal => AbortSignal.timeout(CALL_MS);
export const never = new AbortController().signal;

/** Says back what it is told until its end, on as many connections as there are. */
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

/** Runs a program of the sandbox's that says a line once it is ready. */
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
  const said = Buffer.concat(records.map(({ data }) => data)).toString();
  if (said !== "ready\n") throw new Error(`the server inside said: ${said}`);
}

export const runEcho = (link: Link, port: number): Promise<void> => runServer(link, ECHO, port);

/** What comes back of what is said, up to the end of it. */
export async function said(stream: Duplex, text: string): Promise<string> {
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
  launch(): Promise<Instance>;
  connect(instance: Instance): Promise<Link>;
}

export function describePorts({ driver, launch, connect }: Given): void {
  describe("ports", () => {
    const dial = async (instance: Instance, port: number, signal = never) =>
      (await driver().dial(instance, port, signal)).bytes;

    test("one at which a program of the sandbox listens is reached, by the keeper that the link leads to", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const { bootId, bytes } = await driver().dial(instance, 8_080, never);
      expect(bootId).toBe(link.keeper.bootId);
      expect(await said(bytes, "hello")).toBe("hello");
    });

    test("64 MB go each way at once, byte for byte", async () => {
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

    test("one at which nothing listens is refused, whatever listens there on the host", async () => {
      const instance = await launch();
      const host = createServer().listen(0, "127.0.0.1");
      await once(host, "listening");
      const { port } = host.address() as AddressInfo;
      await expect(dial(instance, port)).rejects.toMatchObject({ reason: "system", errno: "ECONNREFUSED" });
      await new Promise((closed) => host.close(closed));
    });

    test("256 streams at once are served, one more is refused, and links and commands go on", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const streams = await Promise.all(Array.from({ length: 256 }, () => dial(instance, 8_080)));
      await expect(dial(instance, 8_080)).rejects.toMatchObject({ reason: "limit" });
      await (await connect(instance)).ping(soon());
      const heard = await Promise.all(streams.map((stream, index) => said(stream, `stream ${index}`)));
      expect(heard).toEqual(streams.map((_, index) => `stream ${index}`));
      expect(await said(await dial(instance, 8_080), "again")).toBe("again");
    }, 60_000);

    test("a stream is cut with its signal, and with its sandbox", async () => {
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

    test("a stream of a frozen sandbox goes on when that does", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await runEcho(link, 8_080);
      const bytes = await dial(instance, 8_080);
      await driver().freeze(instance.sandboxId, soon());
      const heard = said(bytes, "hello");
      await driver().thaw(instance.sandboxId, soon());
      expect(await heard).toBe("hello");
    });
  });
}
