import { createServer, type Server } from "node:net";
import { join } from "node:path";
import type { Stat } from "@holdfast/engine";
import { afterEach, beforeEach, expect, test } from "vitest";
import { collect, removeAll, soon, temporary } from "../testing/test-keeper.ts";
import { Channel } from "../wire/channel.ts";
import { ANSWER, REQUEST } from "../wire/protocol.ts";
import { openSocket } from "../wire/socket.ts";
import { FrameSplitter, Writer } from "../wire/wire.ts";
import { FileBody } from "./file-body.ts";

const CONTENT = Buffer.from(Array.from({ length: 3_000_000 }, (_, index) => index % 251));

/** A server whose answers are shorter than requested, as after an I/O error in the middle of a file. */
function shortReads(): Server {
  return createServer((socket) => {
    const out = new Writer();
    const splitter = new FrameSplitter((id, type, from) => {
      from.u32();
      const offset = type === REQUEST.fileRead ? from.u64() : 0;
      const length = type === REQUEST.fileRead ? from.u32() : 0;
      const data = CONTENT.subarray(offset, offset + Math.min(length, 300_000));
      out.frame(id, type | ANSWER, () => {
        if (type === REQUEST.fileRead) out.data([data]);
      });
      for (const part of out.take()) socket.write(part);
    });
    socket.on("data", (chunk) => splitter.feed(chunk, false));
    socket.on("error", () => {});
  });
}

let directory: string;
let server: Server;
beforeEach(() => {
  directory = temporary();
  server = shortReads().listen(join(directory, "socket"));
});
afterEach(() => {
  server.close();
  removeAll(directory);
});

test("short answers leave no gap in the data read ahead", async () => {
  let channel: Channel | undefined;
  const socket = await openSocket(join(directory, "socket"), (chunk) => channel?.feed(chunk, true), soon());
  const options = { heartbeatMs: 1_000, deadMs: 5_000, now: Date.now, onEvent: () => {} };
  channel = new Channel(socket, options);
  const file = { handle: 1, stat: { sizeBytes: CONTENT.length } as Stat };
  const body = new FileBody(channel, file, { offset: 10, length: null }, soon());
  expect(Buffer.compare(await collect(body), CONTENT.subarray(10))).toBe(0);
  channel.close("done");
});
