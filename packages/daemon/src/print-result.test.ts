import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";

const MODULE = join(import.meta.dirname, "print-result.ts");
const ITEMS = 30_000;
const SCRIPT = `const { printResult } = await import(${JSON.stringify(MODULE)});
await printResult(Array.from({ length: ${ITEMS} }, (_, n) => "sandbox " + n));
process.exit(0);`;

const printing = () =>
  spawn(process.execPath, ["--input-type=module", "--eval", SCRIPT], {
    stdio: ["ignore", "pipe", "inherit"],
  });

test("a result reaches a slow reader complete, although the process exits right after it", async () => {
  const child = printing();
  const exited = once(child, "exit");
  await sleep(500);
  let text = "";
  for await (const chunk of child.stdout.setEncoding("utf8")) {
    text += chunk;
    await sleep(1);
  }
  expect(text.length).toBeGreaterThan(200_000);
  expect(JSON.parse(text)).toHaveLength(ITEMS);
  expect(await exited).toEqual([0, null]);
});

test("a reader that leaves does not keep the process", async () => {
  const child = printing();
  const exited = once(child, "exit");
  child.stdout.destroy();
  expect(await exited).toEqual([0, null]);
});
