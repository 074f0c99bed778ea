import { readFile } from "node:fs/promises";
import { type Socket, SocketAddress } from "node:net";

interface Watched {
  socket: Socket;
  onVanished: () => void;
  /** Number of bytes that the peer had acknowledged at the last check whose result was used. */
  acknowledged: number;
  /** Number of consecutive checks in which the peer had acknowledged nothing new. */
  stuckLooks: number;
}

/** The kernel's TCP tables. They contain the number of unacknowledged bytes of each connection. */
const TABLES = ["/proc/net/tcp", "/proc/net/tcp6"] as const;

/**
 * Detects peers that acknowledge none of the bytes they are sent, such as a machine that lost power or network and
 * therefore never sends a FIN or reset. On a quiet stream no write ever blocks, because its few bytes fit into the
 * kernel's buffer, and the kernel itself keeps retrying for a quarter of an hour. The socket option TCP_USER_TIMEOUT
 * would detect such peers, but Node cannot set it. So this class reads the number of unacknowledged bytes from the
 * kernel's connection tables.
 *
 * A connection without unacknowledged bytes is left to TCP keepalive. A connection that is missing from the tables is
 * kept. The class counts checks instead of time, so that a server that was itself stopped for a while disconnects no
 * caller. It can't detect that a peer behind a proxy has vanished, because the proxy acknowledges in the peer's place;
 * the stream to such a peer ends at its maximum age.
 */
export class DeadPeerWatch {
  readonly #everyMs: number;
  readonly #stuckLooks: number;
  readonly #watched = new Set<Watched>();
  #timer: NodeJS.Timeout | undefined;
  #isLooking = false;

  constructor({ everyMs, stallMs }: { everyMs: number; stallMs: number }) {
    this.#everyMs = everyMs;
    this.#stuckLooks = Math.max(2, Math.ceil(stallMs / everyMs));
  }

  /** Starts to watch a connection. Calls `onVanished` at most once. The returned function stops the watch. */
  watch(socket: Socket, onVanished: () => void): () => void {
    const watched: Watched = { socket, onVanished, acknowledged: 0, stuckLooks: 0 };
    this.#watched.add(watched);
    socket.setKeepAlive(true, this.#everyMs * this.#stuckLooks);
    this.#timer ??= setInterval(() => void this.#look(), this.#everyMs).unref();
    return () => this.#drop(watched);
  }

  #drop(watched: Watched): void {
    this.#watched.delete(watched);
    if (this.#watched.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #look(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    const before = new Map([...this.#watched].map((each) => [each, sentOn(each.socket)]));
    const unacknowledged = await readTables();
    for (const [watched, sent] of before) {
      // The result of the check is ignored if bytes were sent meanwhile, because then the number of sent bytes and the
      // number of unacknowledged bytes are from different moments.
      if (this.#watched.has(watched) && sentOn(watched.socket) === sent)
        this.#judge(watched, sent, unacknowledged.get(keyOf(watched.socket)) ?? 0);
    }
    this.#isLooking = false;
  }

  #judge(watched: Watched, sent: number, unacknowledged: number): void {
    const acknowledged = sent - unacknowledged;
    const isStuck = unacknowledged > 0 && acknowledged === watched.acknowledged;
    watched.acknowledged = acknowledged;
    watched.stuckLooks = isStuck ? watched.stuckLooks + 1 : 0;
    if (watched.stuckLooks < this.#stuckLooks) return;
    this.#drop(watched);
    watched.onVanished();
  }
}

const sentOn = (socket: Socket): number => socket.bytesWritten - socket.writableLength;

/** Returns a key for a connection: its local port, remote address and remote port in Node's notation. */
const keyOf = ({ localPort, remoteAddress, remotePort }: Socket): string =>
  `${localPort} ${remoteAddress} ${remotePort}`;

async function readTables(): Promise<Map<string, number>> {
  const found = new Map<string, number>();
  for (const path of TABLES) {
    const text = await readFile(path, "latin1").catch(() => "");
    for (const line of text.split("\n").slice(1)) {
      const [, local = "", remote = "", , queues = ""] = line.trim().split(/\s+/);
      const bytes = Number.parseInt(queues, 16);
      if (bytes > 0) found.set(connectionKey(local, remote), bytes);
    }
  }
  return found;
}

/** Returns the same key as `keyOf`, from two `ADDRESS:PORT` fields of a kernel table, which are in hexadecimal. */
export function connectionKey(local: string, remote: string): string {
  const [, localPort = ""] = local.split(":");
  const [address = "", port = ""] = remote.split(":");
  return `${Number.parseInt(localPort, 16)} ${addressOf(address)} ${Number.parseInt(port, 16)}`;
}

/**
 * Decodes an address. The kernel prints an address as four-byte words in host byte order. All supported CPUs are
 * little-endian, so the bytes of each word are reversed.
 */
function addressOf(hex: string): string {
  const bytes = (hex.match(/.{8}/g) ?? []).flatMap((word) => [...Buffer.from(word, "hex").reverse()]);
  if (bytes.length === 4) return bytes.join(".");
  const groups = Array.from({ length: 8 }, (_, i) =>
    (((bytes[2 * i] ?? 0) << 8) | (bytes[2 * i + 1] ?? 0)).toString(16),
  );
  return new SocketAddress({ address: groups.join(":"), family: "ipv6" }).address;
}
