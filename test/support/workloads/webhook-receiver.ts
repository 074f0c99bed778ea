import { createHmac, timingSafeEqual } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

interface Received {
  /** The delivery's id, from its header. */
  id: string;
  type: "alert.fired" | "alert.cleared";
  alert: { id: string; key: string; kind: string; state: string; severity: string; message: string };
  /** Null if the receiver never responded. */
  status: number | null;
}

/** Chooses the response: a status, or null for none. */
type Answer = (message: Received) => number | null;

/** A webhook receiver on loopback that verifies every signature as docs/operating.md describes. */
export class WebhookReceiver implements AsyncDisposable {
  readonly #server: Server;
  readonly secret = "a secret between the two of us";
  readonly received: Received[] = [];
  readonly forged: string[] = [];
  answer: Answer = () => 204;

  private constructor() {
    this.#server = createServer((request, response) => void this.#take(request, response));
  }

  static async start(): Promise<WebhookReceiver> {
    const receiver = new WebhookReceiver();
    receiver.#server.listen(0, "127.0.0.1");
    await once(receiver.#server, "listening");
    return receiver;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/alerts`;
  }

  /** The server's settings for this receiver. */
  get env(): NodeJS.ProcessEnv {
    return { HOLDFAST_WEBHOOK_URL: this.url, HOLDFAST_WEBHOOK_SECRET: this.secret };
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = Buffer.concat(parts);
    if (!this.#isSigned(request, body)) {
      this.forged.push(body.toString());
      response.writeHead(401).end();
      return;
    }
    const { type, alert } = JSON.parse(body.toString()) as Received;
    const message: Received = { id: String(request.headers["holdfast-delivery"]), type, alert, status: null };
    message.status = this.answer(message);
    this.received.push(message);
    if (message.status !== null) response.writeHead(message.status).end();
  }

  #isSigned({ headers }: IncomingMessage, body: Buffer): boolean {
    const timestamp = String(headers["holdfast-timestamp"]);
    const expected = createHmac("sha256", this.secret).update(`${timestamp}.`).update(body).digest();
    const given = Buffer.from(String(headers["holdfast-signature"]).replace(/^sha256=/, ""), "hex");
    const isRecent = Math.abs(Date.now() / 1000 - Number(timestamp)) < 300;
    return isRecent && given.length === expected.length && timingSafeEqual(given, expected);
  }

  about(key: string): Received[] {
    return this.received.filter(({ alert }) => alert.key === key);
  }

  /** The types of accepted messages, in order. */
  taken(key: string): string[] {
    return this.about(key)
      .filter(({ status }) => status !== null && status < 300)
      .map(({ type }) => type);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}
