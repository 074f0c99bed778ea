import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import { until } from "../testing/double.ts";
import { connectionKey, DeadPeerWatch } from "./dead-peer-watch.ts";

/**
 * A peer that connects and prints a message. With `vanish`, its kernel then drops every incoming segment of the
 * connection, so that nothing is ever acknowledged; without, incoming data is acknowledged and never read.
 */
const PEER = `
import ctypes, socket, struct, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(b"here")
link.recv(1)
if sys.argv[2] == "vanish":
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    link.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(drop)))
print("gone", flush=True)
sys.stdin.read()
`;

async function connected(how: "vanish" | "stay"): Promise<{ socket: Socket; say(): void }> {
  const server: Server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  const peer: ChildProcess = spawn("/usr/bin/python3", ["-c", PEER, String(port), how], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const [socket] = (await once(server, "connection")) as [Socket];
  onTestFinished(async () => {
    const over = once(peer, "exit");
    peer.stdin?.end();
    await over;
    socket.destroy();
    server.close();
  });
  socket.on("error", () => undefined);
  await once(socket, "data");
  socket.write("x");
  await once(peer.stdout as NodeJS.ReadableStream & NodeJS.EventEmitter, "data");
  return { socket, say: () => void socket.write("keepalive") };
}

describe("a peer of a quiet connection", () => {
  test("is reported as vanished when it acknowledges nothing", async () => {
    const { socket, say } = await connected("vanish");
    let vanished = 0;
    const unwatch = new DeadPeerWatch({ everyMs: 50, stallMs: 500 }).watch(socket, () => {
      vanished += 1;
    });
    const saying = setInterval(say, 120);
    await until(() => vanished > 0);
    clearInterval(saying);
    unwatch();
    expect(vanished).toBe(1);
    expect(socket.writableLength).toBe(0);
  });

  test("is left alone while it acknowledges, whether it reads or not", async () => {
    const { socket, say } = await connected("stay");
    let vanished = 0;
    const unwatch = new DeadPeerWatch({ everyMs: 50, stallMs: 500 }).watch(socket, () => {
      vanished += 1;
    });
    for (let i = 0; i < 20; i += 1) {
      say();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    unwatch();
    expect(vanished).toBe(0);
  });
});

describe("connections in the kernel's tables", () => {
  test.each([
    ["0100007F:128E", "0100007F:D5F2", "4750 127.0.0.1 54770"],
    [
      "0000000000000000FFFF00000100007F:128E",
      "0000000000000000FFFF00000502A8C0:0050",
      "4750 ::ffff:192.168.2.5 80",
    ],
    [
      "00000000000000000000000001000000:128E",
      "000080FE00000000FF005450B6AD1DFE:01BB",
      "4750 fe80::5054:ff:fe1d:adb6 443",
    ],
  ])("%s ← %s has the same addresses as in Node", (local, remote, key) => {
    expect(connectionKey(local, remote)).toBe(key);
  });
});
