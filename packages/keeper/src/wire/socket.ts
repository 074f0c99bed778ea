import { closeSync, constants, fstatSync, openSync } from "node:fs";
import { connect, type OnReadOpts, type Socket } from "node:net";
import { LinkLost } from "@holdfast/engine";

const O_PATH = 0o10000000;

/**
 * The receive buffer, which all links share. One buffer suffices, because a chunk is processed completely before the
 * next socket is read.
 */
const arrivals = Buffer.allocUnsafeSlow(262_144);

/**
 * Connects to a socket in a directory that a sandbox may write to. The socket file is opened and checked, and the
 * connection is made through its descriptor. A symbolic link at the path is therefore refused, and a link that replaces
 * the socket after the check is never followed. The chunk passed to `onBytes` is overwritten after the call. If
 * `onBytes` is null, the caller reads the socket itself, through its usual events.
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
  throw new LinkLost("the file at the path of the keeper's socket is not a socket", "no");
}
