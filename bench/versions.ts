/**
 * Compares this checkout with another one, interleaved in one run: exec, create with delete, standby and wake.
 * `node bench/versions.ts <other checkout> [rounds]`; both checkouts must be set up (`npm start` does it).
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { TestServer } from "../test/support/server/test-server.ts";
import { interleaved, type Sample } from "./measure.ts";

/** Paths of the server's entry point in checkouts, newest first. */
const MAINS = ["packages/daemon/src/main.ts", "packages/server/src/main.ts"];
const HERE = fileURLToPath(new URL("..", import.meta.url));
const [, , other, rounds = "40"] = process.argv;

if (other === undefined) {
  console.error("usage: node bench/versions.ts <other checkout> [rounds]");
  process.exit(2);
}

async function serverOf(checkout: string): Promise<TestServer> {
  const main = MAINS.map((path) => join(checkout, path)).find((path) => existsSync(path));
  if (main === undefined) throw new Error(`${checkout} is no checkout of Holdfast`);
  const server = new TestServer();
  await server.start({ main });
  return server;
}

await using ours = await serverOf(HERE);
await using theirs = await serverOf(other);
const clients: Record<string, Holdfast> = { "this checkout": ours.client(), "the other": theirs.client() };

function print(what: string, samples: Record<string, Sample>): void {
  const [one, two] = Object.keys(clients).map((name) => samples[name]);
  if (one === undefined || two === undefined) return;
  const ms = (value: number) => value.toFixed(2).padStart(9);
  console.log(
    `${what.padEnd(24)}${ms(one.p50)}${ms(two.p50)}   ${(one.p50 / two.p50).toFixed(2)}×   p95 ${(one.p95 / two.p95).toFixed(2)}×   n ${one.n}`,
  );
}

async function compare(
  what: string,
  share: number,
  perRound: number,
  work: (client: Holdfast, name: string) => Promise<unknown>,
): Promise<void> {
  const contenders = Object.entries(clients).map(
    ([name, client]) => [name, () => work(client, name)] as const,
  );
  const count = Math.max(1, Math.round(Number(rounds) * share));
  const counts = Object.fromEntries(contenders.map(([name]) => [name, count]));
  print(what, await interleaved(Object.fromEntries(contenders), counts, perRound));
}

const boxes: Record<string, Sandbox> = {};
for (const [name, client] of Object.entries(clients)) boxes[name] = await client.sandboxes.create({});
const box = (name: string): Sandbox => {
  const found = boxes[name];
  if (found === undefined) throw new Error(`no sandbox for ${name}`);
  return found;
};

console.log(`${"p50 in ms".padEnd(24)}     this    other   ratio`);
await compare("exec", 1, 10, (_, name) => box(name).exec(["/bin/true"]));
await compare("create and delete", 0.5, 1, async (client) => (await client.sandboxes.create({})).delete());
await compare("standby, first call", 0.5, 1, async (_, name) => {
  await box(name).standby();
  await box(name).exec(["/bin/true"]);
});
for (const each of Object.values(boxes)) await each.delete();
