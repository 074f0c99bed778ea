import type { ClientOptions, Holdfast, Sandbox } from "@holdfast/sdk";
import { TestServer } from "../server/test-server.ts";
import { FaultProxy } from "./fault-proxy.ts";

/**
 * Numbers about twenty times shorter than the defaults, so that waits of minutes take seconds. The keeper's own limit of
 * 15 s for a silent link is unchanged.
 */
export const FAST = {
  heartbeatMs: 200,
  linkDeadMs: 600,
  linkRetryMaxMs: 200,
  streamKeepaliveMs: 500,
  httpKeepAliveMs: 3_000,
  httpReceiveMs: 10_000,
  httpStallMs: 5_000,
  observeEveryMs: 1_000,
};

interface WorldOptions {
  boxes: number;
  seed: number;
  numbers?: Record<string, number>;
  memoryMb?: number;
}

/** A server and sandboxes, with a proxy in front of each keeper and one in front of the server. */
export class FaultyWorld implements AsyncDisposable {
  readonly server: TestServer;
  readonly http: FaultProxy;
  readonly keepers: readonly FaultProxy[];
  readonly ids: readonly string[];

  private constructor(server: TestServer, http: FaultProxy, keepers: FaultProxy[], ids: string[]) {
    this.server = server;
    this.http = http;
    this.keepers = keepers;
    this.ids = ids;
  }

  /** Creates the world. The server is started twice: the second time it finds the proxies in place of the keepers. */
  static async make({ boxes, seed, numbers, memoryMb = 256 }: WorldOptions): Promise<FaultyWorld> {
    await using made = new AsyncDisposableStack();
    const server = made.use(await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers ?? {}) }));
    const client = server.client();
    const ids: string[] = [];
    for (let i = 0; i < boxes; i += 1)
      ids.push((await client.sandboxes.create({ name: `box-${i}`, resources: { memoryMb } })).id);
    client.close();
    await server.kill("SIGTERM");
    const keepers: FaultProxy[] = [];
    for (const [i, id] of ids.entries())
      keepers.push(made.use(await FaultProxy.toKeeper(server.dir, id, seed + i + 1)));
    await server.start();
    const http = made.use(await FaultProxy.toUrl(server.url, seed));
    made.move();
    return new FaultyWorld(server, http, keepers, ids);
  }

  get proxies(): FaultProxy[] {
    return [this.http, ...this.keepers];
  }

  /** A client that connects through the proxy. */
  client(options: ClientOptions = {}): Holdfast {
    return this.server.client({ url: this.http.url, ...options });
  }

  async boxes(client: Holdfast): Promise<Sandbox[]> {
    return Promise.all(this.ids.map((id) => client.sandboxes.get(id)));
  }

  keeperPids(): number[] {
    return this.ids.map((id) => this.server.keeperPid(id));
  }

  heal(): void {
    for (const proxy of this.proxies) proxy.heal();
  }

  /** The server is stopped first, because it reaches its keepers through the proxies until its end. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      this.heal();
      await this.server[Symbol.asyncDispose]();
    } finally {
      await Promise.all(this.proxies.map((proxy) => proxy[Symbol.asyncDispose]()));
    }
  }
}
