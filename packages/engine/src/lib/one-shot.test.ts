import { expect, test } from "vitest";
import { soonest } from "./deadline.ts";
import { OneShot } from "./one-shot.ts";

test("a one-shot event notifies each listener once, also a listener that comes after the event", () => {
  const event = new OneShot();
  const calls: string[] = [];
  event.onSet(() => calls.push("before"));
  event.set();
  event.set();
  event.onSet(() => calls.push("after"));
  expect(calls).toEqual(["before", "after"]);
  expect(event.isSet).toBe(true);
});

test("a removed listener of a one-shot event is not called", () => {
  const event = new OneShot();
  const remove = event.onSet(() => expect.unreachable());
  remove();
  event.set();
});

test("the promise and the signal of a one-shot event end with it, whether they are asked for before or after", async () => {
  const event = new OneShot();
  const { promise, signal } = event;
  expect(signal.aborted).toBe(false);
  event.set();
  await promise;
  await event.promise;
  expect(signal.aborted).toBe(true);
  expect(new OneShot().signal.aborted).toBe(false);
  const late = new OneShot();
  late.set();
  expect(late.signal.aborted).toBe(true);
});

test("a wait for the soonest of several events ends with a one-shot event and leaves no timer", async () => {
  const event = new OneShot();
  let cancelled = false;
  const cancel = () => {
    cancelled = true;
  };
  const clock = { after: () => cancel } as never;
  const wait = soonest(clock, 60_000, new AbortController().signal, event);
  event.set();
  await wait;
  expect(cancelled).toBe(true);
});
