import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { VirtualTime } from "./virtual-time.ts";

const always = () => true;

describe("virtual time", () => {
  it("fires timers in the order of their time, and equal ones in the order of creation", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat(20), { maxLength: 30 }), async (delays) => {
        const time = new VirtualTime();
        const rung: { due: number; made: number; at: number }[] = [];
        delays.forEach((due, made) => {
          time.after(due, () => rung.push({ due, made, at: time.elapsed }));
        });
        await time.pass(20, always);
        const expected = delays
          .map((due, made) => ({ due, made, at: due }))
          .sort((a, b) => a.due - b.due || a.made - b.made);
        expect(rung).toEqual(expected);
      }),
      { numRuns: 50 },
    );
  });

  it("fires no cancelled timer, and none of a dead owner", async () => {
    const time = new VirtualTime();
    const owner = { alive: true };
    const rung: string[] = [];
    const cancel = time.after(5, () => rung.push("cancelled"));
    time.after(5, () => rung.push("owned"), owner);
    time.after(6, () => rung.push("free"));
    cancel();
    owner.alive = false;
    await time.pass(10, always);
    expect(rung).toEqual(["free"]);
  });

  it("advances only when everything that can happen at a moment has happened", async () => {
    const time = new VirtualTime();
    const seen: number[] = [];
    time.after(1, async () => {
      for (let n = 0; n < 100; n += 1) await null;
      seen.push(time.elapsed);
    });
    time.after(2, () => seen.push(time.elapsed));
    await time.pass(5, always);
    expect(seen).toEqual([1, 2]);
  });

  it("waits for microtasks also if called from a macrotask", async () => {
    const time = new VirtualTime();
    let happened = 0;
    const asked = await new Promise<number>((resolve) => {
      setImmediate(() => {
        void (async () => {
          for (; happened < 100; happened += 1) await null;
        })();
        void time.quiet().then(() => resolve(happened));
      });
    });
    expect(asked).toBe(100);
  });

  it("sets the time of day without affecting timers", async () => {
    const time = new VirtualTime();
    const before = time.now();
    let rung = false;
    time.after(1_000, () => {
      rung = true;
    });
    time.jump(-60_000);
    await time.pass(999, always);
    expect([rung, time.now() - before]).toEqual([false, 999 - 60_000]);
    await time.pass(1, always);
    expect(rung).toBe(true);
    expect(time.wallAt(0)).toBe(before - 60_000);
  });
});
