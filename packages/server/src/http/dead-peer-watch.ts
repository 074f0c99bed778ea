import { readFile } from "node:fs/promises";
import { type Socket, SocketAddress } from "node:net";

interface Watched {
  socket: Socket;
  onVanished: () => void;
  /** What its peer had acknowledged when that last changed, or when nothing was left to acknowledge. */
  acknowledged: number;
  /** Looks in a row that found the same. */
  stuckLooks: number;
}

/** The kernel's tables of TCP connections: what each has sent and not seen acknowledged is in them. */
const TABLES = ["/proc/net/tcp", "/proc/net/tcp6"] as const;

/**
 * Finds peers that acknowledge nothing of what they were sent: machines that lost their power or their network, from
 * which no end and no reset ever comes. What little a quiet stream sends fits the kernel's buffer, so that no write ever
 * waits, and the kernel itself goes on trying for a quarter of an hour. Node can't set TCP_USER_TIMEOUT; this does the
 * same from what the kernel tells of its connections. One that sends nothing at all is left to TCP's own keepalive.
 *
 * It errs towards patience: looks are counted, not time, so a server that was stopped itself cuts nobody off, and a
 * connection that can't be found in the tables is left alone. Peers behind a proxy that acknowledges for them are not
 * found here; those streams end by their age.
 */
export class PeerWatch {
  readonly #everyMs: number;
  readonly #stuckLooks: number;
  readonly #watched = new Set<Watched>();
  #timer: NodeJS.Timeout | undefined;
  #isLooking = false;

  constructor({ everyMs, stallMs }: { everyMs: number; stallMs: number }) {
    this.#everyMs = everyMs;
    this.#stuckLooks = Math.max(2, Math.ceil(stallMs / everyMs));
  }

  /** Calls `onVanished`, once at most, until the answer is called. */
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
      // Otherwise what was sent and what is left of it are not of the same moment.
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

/** Both ends of a connection, as Node names them. */
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

/** From two of `ADDRESS:PORT`, in hexadecimal. */
export function connectionKey(local: string, remote: string): string {
  const [, localPort = ""] = local.split(":");
  const [address = "", port = ""] = remote.split(":");
  return `${Number.parseInt(localPort, 16)} ${addressOf(address)} ${Number.parseInt(port, 16)}`;
}

/** The kernel prints an address as words of four bytes, each in the host's own order, which is the little end first here. */
function addressOf(hex: string): string {
  const bytes = (hex.match(/.{8}/g) ?? []).flatMap((word) => [...Buffer.from(word, "hex").reverse()]);
  if (bytes.length === 4) return bytes.join(".");
  const groups = Array.from({ length: 8 }, (_, i) =>
    (((bytes[2 * i] ?? 0) << 8) | (bytes[2 * i + 1] ?? 0)).toString(16),
  );
  return new SocketAddress({ address: groups.join(":"), family: "ipv6" }).address;
}
