import { closeSync, constants, fstatSync, openSync } from "node:fs";
import { connect, type OnReadOpts, type Socket } from "node:net";
import { LinkLost } from "@holdfast/engine";

const O_PATH = 0o10000000;

/**
 * Where the bytes of every link arrive. One is enough for all: a chunk is read to its end before the next socket's
 * read begins, and an idle link then costs no buffer.
 */
const arrivals = Buffer.allocUnsafeSlow(262_144);

/**
 * Connects to a socket in a directory that a sandbox may write to. What was opened is looked at before it is used, and
 * the connection goes to that very thing by its descriptor: a symbolic link planted at the path is refused, one put
 * there in between is never followed. The chunk given to `onBytes` is overwritten after the call; without it the socket
 * is read like any other.
 */
export function openSocket(
  path: string,
  onBytes: ((chunk: Buffer) => void) | null,
  signal: AbortSignal,
): Promise<Socket> {
  signal.throwIfAborted();
  const fd = openPath(path);
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const at = { path: `/proc/self/fd/${fd}` };
  const socket = connect(onBytes === null ? at : { ...at, onread: sharing(onBytes) });
  const abort = () => socket.destroy(signal.reason);
  const settled = () => {
    closeSync(fd);
    signal.removeEventListener("abort", abort);
  };
  const fail = (error: NodeJS.ErrnoException) => {
    settled();
    reject(
      signal.aborted ? signal.reason : new LinkLost(`the keeper's socket: ${error.code ?? error.name}`, "no"),
    );
  };
  signal.addEventListener("abort", abort);
  socket.once("error", fail);
  socket.once("connect", () => {
    socket.off("error", fail);
    settled();
    resolve(socket);
  });
  return promise;
}

const sharing = (onBytes: (chunk: Buffer) => void): OnReadOpts => ({
  buffer: arrivals,
  callback: (size, buffer) => {
    onBytes((buffer as Buffer).subarray(0, size));
    return true;
  },
});

function openPath(path: string): number {
  let fd: number;
  try {
    fd = openSync(path, O_PATH | constants.O_NOFOLLOW);
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : error;
    throw new LinkLost(`the keeper's socket can't be opened: ${code}`, "no");
  }
  if (fstatSync(fd).isSocket()) return fd;
  closeSync(fd);
  throw new LinkLost("what lies at the path of the keeper's socket is not a socket", "no");
}
