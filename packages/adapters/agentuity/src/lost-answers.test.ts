import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { Callers } from "@holdfast/server/adapter";
import { until } from "@holdfast/server/testing";
import { afterEach, expect, test } from "vitest";
import { LostAnswers } from "./lost-answers.ts";

/** A request over a real connection that asks for an id and is answered when the test decides. */
interface Asked {
  id: string | null;
  left: boolean;
  socket: Socket;
  response: ServerResponse;
}
const opened: Disposable[] = [];
afterEach(() => {
  for (const each of opened.splice(0)) each[Symbol.dispose]();
});

async function bench(lost: LostAnswers) {
  const callers = new Callers();
  const asked: Asked[] = [];
  const server = createServer((request, response) => {
    const one: Asked = { id: null, left: false, socket: request.socket, response };
    asked.push(one);
    lost.idFor(request.url, response, callers.signal(response)).then(
      (id) => {
        one.id = id;
      },
      () => {
        one.left = true;
      },
    );
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  opened.push({
    [Symbol.dispose]: () => {
      server.closeAllConnections();
      server.close();
    },
  });
  /** Sends the request, and returns once it has arrived. */
  const ask = async (path: string): Promise<{ client: Socket; one: Asked }> => {
    const count = asked.length;
    const client = connect(port, "127.0.0.1").on("error", () => {});
    client.write(`POST ${path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n`);
    await until(() => asked.length > count);
    const one = asked[count];
    if (one === undefined) throw new Error("it did not arrive");
    return { client, one };
  };
  const given = async (one: Asked): Promise<string> => {
    await until(() => one.id !== null);
    return one.id ?? "";
  };
  const drop = async ({ client, one }: { client: Socket; one: Asked }) => {
    client.destroy();
    await until(() => one.response.destroyed);
  };
  const answer = async (one: Asked) => {
    one.response.end("{}");
    await once(one.response, "close");
  };
  return { ask, given, drop, answer };
}

test("a request whose response was lost gets its id again, once", async () => {
  const { ask, given, drop, answer } = await bench(new LostAnswers());
  const first = await ask("/a");
  const id = await given(first.one);
  await drop(first);
  const second = await ask("/a");
  expect(await given(second.one)).toBe(id);
  await answer(second.one);
  const third = await ask("/a");
  expect(await given(third.one)).not.toBe(id);
});

test("a repeated request gets a new id if the first was answered, even if its connection closed", async () => {
  const { ask, given, drop, answer } = await bench(new LostAnswers());
  const first = await ask("/a");
  const id = await given(first.one);
  await answer(first.one);
  await drop(first);
  expect(await given((await ask("/a")).one)).not.toBe(id);
});

test("a different request gets a new id, whatever was lost", async () => {
  const { ask, given, drop } = await bench(new LostAnswers());
  const first = await ask("/a");
  const id = await given(first.one);
  await drop(first);
  expect(await given((await ask("/b")).one)).not.toBe(id);
  expect(await given((await ask("/a")).one)).toBe(id);
});

test("two lost requests get their two ids again, and a third request gets a new one", async () => {
  const { ask, given, drop, answer } = await bench(new LostAnswers());
  const pair = [await ask("/a"), await ask("/a")];
  const ids = [];
  for (const { one } of pair) ids.push(await given(one));
  expect(new Set(ids).size).toBe(2);
  for (const each of pair) await drop(each);
  const again = [];
  for (let count = 0; count < 3; count += 1) {
    const { one } = await ask("/a");
    again.push(await given(one));
    await answer(one);
  }
  expect(again.slice(0, 2).sort()).toEqual(ids.sort());
  expect(ids).not.toContain(again[2]);
});

test("a repetition waits until the lost connection of the first request is noticed", async () => {
  const { ask, given, drop } = await bench(new LostAnswers({ repeatedAfterMs: 0 }));
  const first = await ask("/a");
  const id = await given(first.one);
  const second = await ask("/a");
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(second.one.id).toBeNull();
  await drop(first);
  expect(await given(second.one)).toBe(id);
});

test("a waiting request gets its own id once the other is answered, or after a time limit", async () => {
  const { ask, given, answer } = await bench(new LostAnswers({ repeatedAfterMs: 0, heldMs: 300 }));
  const first = await ask("/a");
  const id = await given(first.one);
  const second = await ask("/a");
  await answer(first.one);
  const other = await given(second.one);
  expect(other).not.toBe(id);
  const third = await ask("/a");
  expect([id, other]).not.toContain(await given(third.one));
});

test("lost requests are forgotten after a while", async () => {
  let now = 0;
  const { ask, given, drop } = await bench(new LostAnswers({ now: () => now }));
  const first = await ask("/a");
  const id = await given(first.one);
  await drop(first);
  now = 60_001;
  expect(await given((await ask("/a")).one)).not.toBe(id);
});

test("requests that arrive sooner than the client repeats do not wait", async () => {
  let now = 0;
  const { ask, given } = await bench(new LostAnswers({ now: () => now, heldMs: 60_000 }));
  const ids = new Set<string>();
  for (let count = 0; count < 3; count += 1) {
    ids.add(await given((await ask("/a")).one));
    now += 100;
  }
  expect(ids.size).toBe(3);
});
