/** A client that attaches to execs. It consists of Node's WebSocket and everything that was received over it. */
import { authorized } from "./double.ts";
import { type Frame, FrameReader } from "./frames.ts";

interface Viewer extends Disposable {
  socket: WebSocket;
  /** Received text messages. */
  records: Record<string, unknown>[];
  frames: Frame[];
  closed: Promise<{ code: number; reason: string }>;
}

export const socketUrl = (url: string, path: string) => url.replace(/^http/, "ws") + path;

/** Resolves when the socket is open; rejects if it is refused. */
export async function attach(
  url: string,
  options: { headers?: Record<string, string>; protocols?: string[] } = { headers: authorized },
): Promise<Viewer> {
  const socket = new WebSocket(url, options);
  socket.binaryType = "arraybuffer";
  const records: Viewer["records"] = [];
  const frames: Frame[] = [];
  socket.addEventListener("message", ({ data }) => {
    if (typeof data === "string") records.push(JSON.parse(data) as Record<string, unknown>);
    else {
      const reader = new FrameReader();
      frames.push(...reader.push(new Uint8Array(data as ArrayBuffer)));
      if (reader.pending > 0) throw new Error("a message holds exactly one frame");
    }
  });
  const closed = new Promise<{ code: number; reason: string }>((resolve) => {
    socket.addEventListener("close", ({ code, reason }) => resolve({ code, reason }));
  });
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener("open", () => resolve());
    socket.addEventListener("error", () => reject(new Error("the socket was refused")));
  });
  return { socket, records, frames, closed, [Symbol.dispose]: () => socket.close() };
}
