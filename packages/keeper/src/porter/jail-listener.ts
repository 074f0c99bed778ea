import { closeSync, constants, mkdtempSync, openSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const O_PATH = 0o10000000;
const SOCKET_NAME = "jails";
const ID_BYTES = 4;

/** A jail that was requested and has not connected yet. */
interface Expected {
  /** The path at which the jail connects, and the id that it sends. */
  path: string;
  id: number;
  socket: Promise<Socket>;
  forget(): void;
}

interface Listening {
  path: string;
  close(): void;
}

/**
 * Accepts the connections of jails. A jail can't inherit its socket, because the spawner starts it. So the jail
 * connects to this process, and sends the id that it was started with.
 *
 * The socket has no name in the file system: a jail reaches it through the path of an open descriptor in this process's
 * /proc directory, which only root can use. Therefore nothing is left behind when this process is killed, and no
 * sandbox can connect.
 */
export class JailListener {
  readonly #waiting = new Map<number, (socket: Socket) => void>();
  #listening: Promise<Listening> | null = null;
  #lastId = 0;

  async expect(): Promise<Expected> {
    this.#listening ??= listen((socket) => this.#arrived(socket)).catch((error: unknown) => {
      this.#listening = null;
      throw error;
    });
    const { path } = await this.#listening;
    this.#lastId = (this.#lastId + 1) >>> 0;
    const id = this.#lastId;
    const { promise, resolve } = Promise.withResolvers<Socket>();
    this.#waiting.set(id, resolve);
    return { path, id, socket: promise, forget: () => void this.#waiting.delete(id) };
  }

  #arrived(socket: Socket): void {
    socket.on("error", () => {});
    socket.once("data", (chunk: Buffer) => {
      const id = chunk.length === ID_BYTES ? chunk.readUInt32LE() : null;
      const resolve = id === null ? undefined : this.#waiting.get(id);
      if (id === null || resolve === undefined) {
        socket.destroy();
        return;
      }
      this.#waiting.delete(id);
      resolve(socket);
    });
  }

  close(): void {
    this.#listening?.then(
      ({ close }) => close(),
      () => {},
    );
    this.#listening = null;
  }
}

async function listen(onSocket: (socket: Socket) => void): Promise<Listening> {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-jails-"));
  const within = openSync(dir, O_PATH | constants.O_DIRECTORY);
  try {
    const server = createServer(onSocket);
    server.unref();
    // Listens at a path below /proc/self/fd, because the address of a socket has at most 107 bytes and the path of the
    // temporary directory may be longer.
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen({ path: `/proc/self/fd/${within}/${SOCKET_NAME}` }, resolve);
    });
    const fd = openSync(join(dir, SOCKET_NAME), O_PATH | constants.O_NOFOLLOW);
    const close = () => {
      server.close();
      closeSync(fd);
    };
    return { path: `/proc/${process.pid}/fd/${fd}`, close };
  } finally {
    closeSync(within);
    rmSync(dir, { recursive: true });
  }
}
