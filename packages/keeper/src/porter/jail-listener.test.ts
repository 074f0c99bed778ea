import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { JailListener } from "./jail-listener.ts";

let root: string;
let before: string | undefined;
let listener: JailListener;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "holdfast-listener-"));
  before = process.env.TMPDIR;
  listener = new JailListener();
});
afterEach(() => {
  listener.close();
  if (before === undefined) delete process.env.TMPDIR;
  else process.env.TMPDIR = before;
  rmSync(root, { recursive: true });
});

function send(path: string, bytes: Uint8Array) {
  const socket = connect(path);
  socket.on("error", () => {});
  socket.write(bytes);
  return socket;
}
const idBytes = (id: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(id);
  return bytes;
};

test("each jail gets the connection that has its id", async () => {
  const [one, two] = [await listener.expect(), await listener.expect()];
  const last = send(two.path, idBytes(two.id));
  const first = send(one.path, idBytes(one.id));
  for (const [jail, client] of [
    [one, first],
    [two, last],
  ] as const) {
    (await jail.socket).write(String(jail.id));
    expect(String((await once(client, "data"))[0])).toBe(String(jail.id));
    client.destroy();
  }
});

test("a connection with an unknown, used or forgotten id is closed", async () => {
  const { path, id, socket } = await listener.expect();
  const forgotten = await listener.expect();
  forgotten.forget();
  const client = send(path, idBytes(id));
  await socket;
  for (const bytes of [idBytes(id), idBytes(forgotten.id), idBytes(77), Buffer.from("abc")])
    await once(send(path, bytes), "close");
  client.destroy();
});

test("nothing is left in the file system, and a long path of the temporary directory does no harm", async () => {
  const long = join(root, "x".repeat(120));
  mkdirSync(long);
  process.env.TMPDIR = long;
  const { path, id, socket } = await listener.expect();
  expect(readdirSync(long)).toEqual([]);
  const client = send(path, idBytes(id));
  await socket;
  client.destroy();
});
