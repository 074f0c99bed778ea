import { once } from "node:events";
import { existsSync, renameSync, rmSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { FaultPipe, type Faults, NO_FAULTS, type Tally } from "./fault-pipe.ts";
import { Random } from "./random.ts";

/** `up` is towards the side that listens, `down` towards the one that connected. */
export type Direction = "up" | "down";
export type Directions = Direction | "both";
export type Place = { host: string; port: number } | { path: string };

const directionsIn = (directions: Directions): Direction[] =>
  directions === "both" ? ["up", "down"] : [directions];

/** How long sides that were sent an end have to send their own. */
const LINGER_MS = 2_000;

interface Connection {
  readonly client: Socket;
  readonly target: Socket;
  readonly pipes: Readonly<Record<Direction, FaultPipe>>;
}

/**
 * Stands between a client and what it connects to, over TCP or a unix socket, and does to the bytes what networks do. Faults
 * hold for the connections there are and for those to come, until they are changed; cuts and resets hit those there are.
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

  /** On a free port of this machine, or at a path. */
  static async start(
    target: Place,
    options: { at?: Place; seed?: number; afterClose?: () => void } = {},
  ): Promise<FaultProxy> {
    const place = options.at ?? { host: "127.0.0.1", port: 0 };
    const proxy = new FaultProxy(place, target, options.seed ?? 1, options.afterClose ?? (() => undefined));
    await proxy.#listen();
    return proxy;
  }

  /** In front of an HTTP server. */
  static toUrl(url: string, seed = 1): Promise<FaultProxy> {
    return FaultProxy.start(placeOf(url), { seed });
  }

  /**
   * In the keeper's place. Links that are up by then go past it: restart the server to have all of them here. Disposing puts
   * the keeper's own socket back, unless the sandbox is gone.
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

  /** What is behind the proxy has moved, as a server does that is started again. */
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

  /** No more faults. What was swallowed stays swallowed. */
  heal(): void {
    this.set("both", NO_FAULTS);
  }

  /** Ends connections in good order; a share of them by chance, or all. */
  cut(directions: Directions = "both", share = 1): void {
    this.#hit(share, ({ client, target, pipes }) => {
      for (const direction of directionsIn(directions)) pipes[direction].cut();
      if (directions !== "both") return;
      const part = () => [client, target].map((socket) => socket.destroy());
      setTimeout(part, LINGER_MS).unref();
    });
  }

  /** Resets connections; a share of them by chance, or all. A side that isn't reset is left alone for ever. */
  reset(directions: Directions = "both", share = 1): void {
    this.#hit(share, ({ pipes }) => {
      for (const pipe of Object.values(pipes)) pipe.fallSilent();
      for (const direction of directionsIn(directions)) pipes[direction].reset();
    });
  }

  /** What has fallen silent stays so: no end and no reset ever comes from there. */
  #hit(share: number, fault: (connection: Connection) => void): void {
    for (const connection of [...this.#connections]) {
      const { up, down } = connection.pipes;
      if (this.random.chance(share) && !up.silent && !down.silent) fault(connection);
    }
  }

  /** Whether newcomers are refused, as where nobody listens. */
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

  /** Connections stay. Node removes a socket's file when it stops listening: put aside, it stays, and refuses. */
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
            // Word of it takes the way back, which may be one on which nothing gets through.
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

  /** Where neither direction gets through, one that lost something is lost in both. */
  #silenceBoth({ pipes }: Connection): void {
    if (!this.#faults.up.halfOpen || !this.#faults.down.halfOpen) return;
    pipes.up.fallSilent();
    pipes.down.fallSilent();
  }

  /** A connection is over when both sides have said so; what only one side knows of stays, as in a network. */
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
