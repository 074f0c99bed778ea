import { STATUSES } from "@holdfast/contract";
import { expect, test } from "vitest";
import { stoppedText, upText } from "./console-text.ts";

const none = Object.fromEntries(STATUSES.map((status) => [status, 0])) as Parameters<typeof stoppedText>[0];
const counts = (given: object) => ({ ...none, ...given }) as Parameters<typeof stoppedText>[0];

test.each([
  [counts({ terminated: 7, failed: 1 }), "Stopped. No sandbox is running."],
  [counts({ ready: 1 }), "1 running sandbox continues without the server; 'npm start' finds it again."],
  [counts({ ready: 2, paused: 1, standby: 1 }), "3 running sandboxes continue, 1 in standby is kept without"],
  [null, "Sandboxes keep running"],
])("the last line says what keeps running: %#", (sandboxes, expected) => {
  expect(stoppedText(sandboxes)).toContain(expected);
});

test("a server that listens at all addresses lists its real ones, with a warning", () => {
  const addresses = { local: "http://127.0.0.1:1", remote: ["http://10.0.0.5:1"] };
  const text = upText({ addresses, keyFile: "/x/admin.key", host: "0.0.0.0" });
  expect(text).toMatch(/URL +http:\/\/127\.0\.0\.1:1\n +http:\/\/10\.0\.0\.5:1\n/);
  expect(text).toContain("WARNING: ");
  const own = upText({ addresses: { ...addresses, remote: [] }, keyFile: "/x/admin.key", host: "127.0.0.1" });
  expect(own).not.toContain("WARNING");
});
