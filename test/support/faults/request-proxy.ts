import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

const REQUEST = /(?:GET|POST|PUT|PATCH|DELETE) \/\S* HTTP\/1\.1\r\n/g;

/** A proxy between client and server that records requests and breaks connections on request. */
export class RequestProxy implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #target: { host: string; port: number };
  /** Method and path of every request, in order. */
  readonly requests: string[] = [];
  /** Called with each request before it is passed on. */
  beforePassing: (request: string) => void = () => undefined;

  private constructor(url: string) {
    this.#target = placeOf(url);
    this.#server = createServer((client) => {
      const upstream = connect(this.#target);
      for (const [socket, other] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        this.#sockets.add(socket);
        socket
          .on("error", () => undefined)
          .on("close", () => {
            this.#sockets.delete(socket);
            other.destroy();
          });
      }
      client.on("data", (data) => {
        this.#note(data.toString("latin1"));
        upstream.write(data);
      });
      client.on("end", () => upstream.end());
      upstream.pipe(client);
    });
  }

  static async toUrl(url: string): Promise<RequestProxy> {
    const proxy = new RequestProxy(url);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Redirects new connections to another target, such as a restarted server. */
  retarget(url: string): void {
    this.#target = placeOf(url);
  }

  #note(text: string): void {
    for (const [line] of text.matchAll(REQUEST)) {
      const request = line.slice(0, line.lastIndexOf(" "));
      this.requests.push(request);
      this.beforePassing(request);
    }
  }

  countOf(pattern: RegExp): number {
    return this.requests.filter((line) => pattern.test(line)).length;
  }

  /** Breaks every current connection, at both ends. New ones are accepted. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    this.cut();
    await once(this.#server, "close");
  }
}

function placeOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) };
}
