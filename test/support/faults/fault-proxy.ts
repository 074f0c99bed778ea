import { once } from "node:events";
import { existsSync, renameSync, rmSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { FaultPipe, type Faults, NO_FAULTS, type Tally } from "./fault-pipe.ts";
import { Random } from "./random.ts";

/** `up` is towards the listening side, `down` towards the side that connected. */
type Direction = "up" | "down";
type Directions = Direction | "both";
export type Place = { host: string; port: number } | { path: string };

const directionsIn = (directions: Directions): Direction[] =>
  directions === "both" ? ["up", "down"] : [directions];

/** Time for a side that was sent an end to send its own. */
const LINGER_MS = 2_000;

interface Connection {
  readonly client: Socket;
  readonly target: Socket;
  readonly pipes: Readonly<Record<Direction, FaultPipe>>;
}

/**
 * A proxy between a client and its target, over TCP or a unix socket, that simulates network faults. Faults apply to
 * current and future connections until they are changed; cuts and resets apply to current ones.
 */
export class FaultProxy implements AsyncDisposable {
  readonly random: Random;
  readonly #faults: Record<Direction, Readonly<Faults>> = { up: NO_FAULTS, down: NO_FAULTS };
  readonly #tallies: Record<Direction, Tally> = {
    up: { bytes: 0, swallowed: 0 },
    down: { bytes: 0, swallowed: 0 },
  };
  readonly #connections = new Set<Connection>();
  readonly #afterClose: () => void;
  #server: Server | null = null;
  #place: Place;
  #target: Place;
  #accepted = 0;

  private constructor(place: Place, target: Place, seed: number, afterClose: () => void) {
    this.random = new Random(seed);
    this.#place = place;
    this.#target = target;
    this.#afterClose = afterClose;
  }

  /** Starts a proxy on a free port of this machine, or at a path. */
  static async start(
    target: Place,
    options: { at?: Place; seed?: number; afterClose?: () => void } = {},
  ): Promise<FaultProxy> {
    const place = options.at ?? { host: "127.0.0.1", port: 0 };
    const proxy = new FaultProxy(place, target, options.seed ?? 1, options.afterClose ?? (() => undefined));
    await proxy.#listen();
    return proxy;
  }

  /** Starts a proxy in front of an HTTP server. */
  static toUrl(url: string, seed = 1): Promise<FaultProxy> {
    return FaultProxy.start(placeOf(url), { seed });
  }

  /**
   * Starts a proxy in the keeper's place. Existing links bypass it, so restart the server to have all of them go
   * through it. Disposing restores the keeper's own socket, unless the sandbox is gone.
   */
  static toKeeper(stateDir: string, sandboxId: string, seed = 1): Promise<FaultProxy> {
    const path = join(stateDir, "sandboxes", sandboxId, "control", "keeper.sock");
    const behind = `${path}.behind`;
    renameSync(path, behind);
    const putBack = () => {
      if (existsSync(behind)) renameSync(behind, path);
    };
    return FaultProxy.start({ path: behind }, { at: { path }, seed, afterClose: putBack });
  }

  get url(): string {
    if ("path" in this.#place) throw new TypeError("a proxy at a path has no URL");
    return `http://${this.#place.host}:${this.#place.port}`;
  }

  get tally(): Readonly<Record<Direction, Readonly<Tally>>> & { accepted: number; open: number } {
    return { ...this.#tallies, accepted: this.#accepted, open: this.#connections.size };
  }

  /** Redirects new connections to another target, such as a restarted server. */
  retarget(url: string): void {
    this.#target = placeOf(url);
  }

  set(directions: Directions, faults: Partial<Faults>): void {
    for (const direction of directionsIn(directions))
      this.#faults[direction] = { ...this.#faults[direction], ...faults };
    for (const { pipes } of this.#connections) {
      pipes.up.refresh();
      pipes.down.refresh();
    }
  }

  /** Ends all faults. Bytes that were swallowed stay lost. */
  heal(): void {
    this.set("both", NO_FAULTS);
  }

  /** Ends connections in order: all, or a random share. */
  cut(directions: Directions = "both", share = 1): void {
    this.#hit(share, ({ client, target, pipes }) => {
      for (const direction of directionsIn(directions)) pipes[direction].cut();
      if (directions !== "both") return;
      const part = () => [client, target].map((socket) => socket.destroy());
      setTimeout(part, LINGER_MS).unref();
    });
  }

  /** Resets connections: all, or a random share. A side that is not reset is never notified. */
  reset(directions: Directions = "both", share = 1): void {
    this.#hit(share, ({ pipes }) => {
      for (const pipe of Object.values(pipes)) pipe.fallSilent();
      for (const direction of directionsIn(directions)) pipes[direction].reset();
    });
  }

  /** Silent connections stay silent: neither an end nor a reset is delivered. */
  #hit(share: number, fault: (connection: Connection) => void): void {
    for (const connection of [...this.#connections]) {
      const { up, down } = connection.pipes;
      if (this.random.chance(share) && !up.silent && !down.silent) fault(connection);
    }
  }

  /** Refuses new connections, as if no process listened. */
  async refuse(refused: boolean): Promise<void> {
    if (refused) this.#unlisten();
    else if (this.#server === null) await this.#listen();
  }

  async #listen(): Promise<void> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (client) =>
      this.#join(client),
    );
    if ("path" in this.#place) rmSync(this.#place.path, { force: true });
    const listening = once(server, "listening");
    server.listen("path" in this.#place ? this.#place.path : this.#place);
    await listening;
    const address = server.address();
    if (typeof address === "object" && address !== null && "host" in this.#place)
      this.#place = { host: this.#place.host, port: address.port };
    this.#server = server;
  }

  /**
   * Stops listening; connections stay. Node removes a socket's file when it stops listening, so the file is moved away
   * first; it stays, and refuses connections.
   */
  #unlisten(): void {
    if (this.#server === null) return;
    if ("path" in this.#place) renameSync(this.#place.path, `${this.#place.path}.aside`);
    this.#server.close();
    if ("path" in this.#place) renameSync(`${this.#place.path}.aside`, this.#place.path);
    this.#server = null;
  }

  #join(client: Socket): void {
    this.#accepted += 1;
    const target = connect({ ...this.#target, allowHalfOpen: true });
    for (const socket of [client, target]) socket.on("error", () => undefined);
    const pipe = (direction: Direction, from: Socket, to: Socket) =>
      new FaultPipe(
        { from, to },
        { faults: () => this.#faults[direction], tally: this.#tallies[direction], random: this.random },
        {
          onSilent: () => this.#silenceBoth(connection),
          onUndeliverable: () => {
            // The reset travels on the return path, which may be silent.
            const { pipes } = connection;
            if (!pipes[direction === "up" ? "down" : "up"].silent) pipes[direction].bounce();
          },
          onOver: () => this.#settle(connection),
        },
      );
    const connection: Connection = {
      client,
      target,
      pipes: { up: pipe("up", client, target), down: pipe("down", target, client) },
    };
    this.#connections.add(connection);
    client.resume();
  }

  /** If neither direction delivers anything, a connection that lost bytes in one is silent in both. */
  #silenceBoth({ pipes }: Connection): void {
    if (!this.#faults.up.halfOpen || !this.#faults.down.halfOpen) return;
    pipes.up.fallSilent();
    pipes.down.fallSilent();
  }

  /** A connection is closed when both sides have closed it; a close known to one side only leaves it open, as in a network. */
  #settle(connection: Connection): void {
    const { client, target, pipes } = connection;
    if (!pipes.up.over || !pipes.down.over || !this.#connections.delete(connection)) return;
    client.destroySoon();
    target.destroySoon();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const server = this.#server;
    this.#server = null;
    const closed = server === null ? null : once(server, "close");
    server?.close();
    for (const { client, target, pipes } of this.#connections) {
      pipes.up.silence();
      pipes.down.silence();
      client.destroy();
      target.destroy();
    }
    this.#connections.clear();
    await closed;
    if ("path" in this.#place) rmSync(this.#place.path, { force: true });
    this.#afterClose();
  }
}

function placeOf(url: string): Place {
  const { hostname, port } = new URL(url);
  return { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port) };
}
