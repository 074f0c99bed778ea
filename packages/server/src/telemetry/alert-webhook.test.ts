import { createHmac } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Alert, DeliveryId } from "@holdfast/contract";
import type { AlertMessage } from "@holdfast/engine";
import { describe, expect, onTestFinished, test } from "vitest";
import { createWebhook, signatureOf } from "./alert-webhook.ts";

const SECRET = "a secret that is long enough";
const alert: Alert = {
  id: "alr_0123456789abcdef",
  key: "capacity:disk",
  kind: "capacity",
  severity: "warning",
  state: "firing",
  sandboxId: null,
  message: "90 % of /var/lib/holdfast is in use.",
  unit: "percent",
  value: 90,
  threshold: 80,
  clearBelow: 75,
  target: null,
  firedAt: "2025-01-01T00:00:00.000Z",
  clearedAt: null,
};
const message: AlertMessage = { id: "dlv_0123456789abcdef" as DeliveryId, createdAt: 1_000, alert };

interface Heard {
  request: IncomingMessage;
  body: string;
}

/** A receiver on loopback that answers as configured and keeps the received messages. */
async function receiver(answer: (response: ServerResponse) => void) {
  const heard: Heard[] = [];
  const server = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    heard.push({ request, body: Buffer.concat(parts).toString() });
    answer(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { heard, url: `http://127.0.0.1:${port}/hook/tok3n?key=s3cr3t` };
}

const deliver = (url: string, signal = AbortSignal.timeout(10_000)) =>
  createWebhook(
    { url: new URL(url), secret: SECRET },
    {
      installation: "inst0000",
      scrub: (text) => text.replaceAll("/var/lib/holdfast", "<host path>"),
      now: () => 1_700_000_000_500,
    },
  ).deliver(message, signal);

const failure = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "delivered",
    (error: Error) => error.message,
  );

describe("a message", () => {
  test("is a signed POST whose signature covers time and body", async () => {
    const { heard, url } = await receiver((response) => response.writeHead(204).end());
    await deliver(url);
    const [{ request, body }] = heard as [Heard];
    const { headers, method, url: path } = request;
    expect([method, path]).toEqual(["POST", "/hook/tok3n?key=s3cr3t"]);
    expect(headers["content-type"]).toBe("application/json");
    expect(headers["holdfast-delivery"]).toBe(message.id);
    expect(headers["holdfast-timestamp"]).toBe("1700000000");
    const expected = createHmac("sha256", SECRET).update(`1700000000.${body}`).digest("hex");
    expect(headers["holdfast-signature"]).toBe(`sha256=${expected}`);
    expect(JSON.parse(body)).toEqual({
      id: message.id,
      type: "alert.fired",
      createdAt: "1970-01-01T00:00:01.000Z",
      installation: "inst0000",
      alert: { ...alert, message: "90 % of <host path> is in use." },
    });
  });

  test("sends the credentials of its URL as a header", async () => {
    const { heard, url } = await receiver((response) => response.end());
    await deliver(url.replace("//", "//me:p%40ss@"));
    const [{ request }] = heard as [Heard];
    expect(request.headers.authorization).toBe(`Basic ${Buffer.from("me:p@ss").toString("base64")}`);
  });

  test.each([200, 201, 202, 204])("is delivered on %d", async (status) => {
    const { url } = await receiver((response) => response.writeHead(status).end());
    expect(await failure(deliver(url))).toBe("delivered");
  });

  test.each([301, 302, 307, 400, 401, 404, 410, 429, 500, 503])(
    "is not delivered on %d, and no redirect is followed",
    async (status) => {
      const { heard, url } = await receiver((response) =>
        response.writeHead(status, { location: "/elsewhere" }).end("no"),
      );
      expect(await failure(deliver(url))).toBe(`The webhook receiver answered ${status}.`);
      expect(heard).toHaveLength(1);
    },
  );

  test("does not wait for a response without an end", async () => {
    const { url } = await receiver((response) => {
      response.writeHead(200);
      const timer = setInterval(() => response.write("x".repeat(65_536)), 1);
      response.on("close", () => clearInterval(timer));
    });
    expect(await failure(deliver(url))).toBe("delivered");
  });

  test("is aborted by its signal", async () => {
    const { url } = await receiver(() => undefined);
    const over = new AbortController();
    const work = failure(deliver(url, over.signal));
    setTimeout(() => over.abort(new Error("took too long")), 50);
    expect(await work).toBe("took too long");
  });
});

test("is accepted by the receiver of docs/operating.md only if correctly signed", async () => {
  const guide = readFileSync(new URL("../../../../docs/operating.md", import.meta.url), "utf8");
  const [, code = ""] = /webhook\.test\.ts -->\n```js\n([\s\S]*?)```/.exec(guide) ?? [];
  const { isFromHoldfast } = (await import(`data:text/javascript,${encodeURIComponent(code)}`)) as {
    isFromHoldfast(secret: string, headers: Record<string, string>, body: Buffer): boolean;
  };
  const body = Buffer.from('{"ä":1}');
  const signed = (at: number, secret = SECRET) => {
    const timestamp = String(Math.floor(at / 1000));
    const signature = signatureOf(secret, timestamp, body.toString());
    return { "holdfast-timestamp": timestamp, "holdfast-signature": signature };
  };
  const now = Date.now();
  expect(isFromHoldfast(SECRET, signed(now), body)).toBe(true);
  expect(isFromHoldfast(SECRET, signed(now), Buffer.from("{}"))).toBe(false);
  expect(isFromHoldfast(SECRET, signed(now, "another secret of that length"), body)).toBe(false);
  expect(isFromHoldfast(SECRET, signed(now - 600_000), body)).toBe(false);
  const replayed = { ...signed(now - 600_000), "holdfast-timestamp": String(Math.floor(now / 1000)) };
  expect(isFromHoldfast(SECRET, replayed, body)).toBe(false);
  expect(isFromHoldfast(SECRET, {}, body)).toBe(false);
});

describe("an error message contains neither URL nor secret", () => {
  test("if no program listens", async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    server.close();
    await once(server, "close");
    const said = await failure(deliver(`http://me:p4ss@127.0.0.1:${port}/tok3n`));
    expect(said).toBe("The webhook receiver could not be reached: ECONNREFUSED.");
  });

  test("if the host does not exist, or the connection breaks", async () => {
    const said = await failure(deliver("http://me:p4ss@holdfast.invalid/tok3n"));
    expect(said).toMatch(/^The webhook receiver could not be reached: \w+\.$/);
    const { url } = await receiver((response) => response.socket?.destroy());
    expect(await failure(deliver(url))).toMatch(/^The webhook receiver could not be reached: \w+\.$/);
  });
});
