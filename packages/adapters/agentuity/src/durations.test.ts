import { describe, expect, it } from "vitest";
import { durationIn, durationMs, durationText } from "./durations.ts";
import { inWorkspace } from "./files/paths.ts";
import { detailsOf, detailsToLabels } from "./sandboxes/details.ts";
import { coresIn, megabytesIn } from "./sandboxes/quantities.ts";

describe("durations", () => {
  it.each([
    ["250ms", 250],
    ["30s", 30_000],
    ["5m", 300_000],
    ["1h30m", 5_400_000],
    ["24h0s", 86_400_000],
    ["1.5h", 5_400_000],
    ["2d", 172_800_000],
    ["0", 0],
    ["0s", 0],
  ])("%s is %d ms", (text, ms) => expect(durationMs(text)).toBe(ms));

  it.each(["", "5", "5 m", "m", "-5m", "1h-30m", "5M", "1e3s"])("%j is not a duration", (text) => {
    expect(durationMs(text)).toBeNull();
    expect(() => durationIn("body/timeout", text)).toThrow("body/timeout");
  });

  it.each([
    [250, "250ms"],
    [90_000, "90s"],
    [600_000, "10m"],
    [86_400_000, "24h"],
  ])("%d ms is formatted as %s, and parses back to the same value", (ms, text) => {
    expect(durationText(ms)).toBe(text);
    expect(durationMs(text)).toBe(ms);
  });
});

describe("quantities", () => {
  it.each([
    ["512Mi", 512],
    ["1Gi", 1_024],
    ["1.5Gi", 1_536],
    ["1G", 954],
    ["1048576", 1],
    ["500k", 1],
  ])("%s is %d MiB", (text, mb) => expect(megabytesIn("body", text)).toBe(mb));
  it.each(["", "Mi", "1 Gi", "1gb", "-1Gi", "1i"])("%j is not an amount of memory", (text) =>
    expect(() => megabytesIn("body/resources/memory", text)).toThrow("body/resources/memory"),
  );
  it.each([
    ["500m", 0.5],
    ["2", 2],
    ["0.25", 0.25],
  ])("%s is %d cores", (text, cores) => expect(coresIn("body", text)).toBe(cores));
  it.each(["", "m", "2Gi", "-1"])("%j is not a number of cores", (text) =>
    expect(() => coresIn("body/resources/cpu", text)).toThrow("body/resources/cpu"),
  );
});

describe("paths", () => {
  it.each([
    ["a.txt", "/home/user/a.txt"],
    ["./a//b/", "/home/user/a/b"],
    ["/tmp/x", "/tmp/x"],
    ["/", "/"],
    [".", "/home/user"],
  ])("%s is %s", (path, absolute) => expect(inWorkspace(path)).toBe(absolute));

  it("paths with .. are left for the engine to refuse", () => {
    expect(inWorkspace("../etc/passwd")).toBe("/home/user/../etc/passwd");
  });
});

describe("details", () => {
  it("survive the round trip through labels, whatever they contain", () => {
    const details = {
      description: "ü".repeat(300),
      metadata: { "any key, at all": [1, { two: null }], emoji: "🙂\n" },
      mode: "oneshot" as const,
    };
    const labels = detailsToLabels(details);
    expect(Object.values(labels).every((text) => text.length <= 256)).toBe(true);
    expect(detailsOf(labels)).toEqual(details);
  });

  it("exceeding the size of labels are refused", () => {
    expect(() => detailsToLabels({ description: "x".repeat(20_000) })).toThrow("exceed the limit");
  });

  it("written by another client are ignored", () => {
    for (const text of ["{", "null", "7"]) expect(detailsOf({ "agentuity/details-00": text })).toEqual({});
  });
});
