import { Labels } from "@holdfast/contract";
import fc from "fast-check";
import { Check } from "typebox/value";
import { expect, test } from "vitest";
import { fromLabels, toLabels } from "./labels.ts";

const tags = fc.record({
  labels: fc.dictionary(fc.string({ unit: "binary" }), fc.string({ unit: "binary", maxLength: 600 }), {
    maxKeys: 8,
    noNullPrototype: true,
  }),
  externalId: fc.option(fc.stringMatching(/^[\w-]{1,64}$/), { nil: undefined }),
  displayName: fc.option(fc.string({ maxLength: 63 }), { nil: undefined }),
  image: fc.option(fc.constant("blaxel/base-image:latest"), { nil: undefined }),
});

test("any label text is stored as valid labels and returned unchanged", () => {
  fc.assert(
    fc.property(tags, (given) => {
      const labels = toLabels(given);
      expect(Check(Labels, labels)).toBe(true);
      expect(fromLabels(labels)).toEqual(given);
    }),
  );
});

test("labels that fit are stored as they are, so that listings filter by them", () => {
  expect(toLabels({ labels: { team: "a", "a b": "c" }, externalId: "x-1" })).toEqual({
    team: "a",
    "blaxel/external-id": "x-1",
    "blaxel/rest-00": '{"a b":"c"}',
  });
});

test("a caller's label that looks like a generated one is not mistaken for it", () => {
  const given = { labels: { "blaxel/external-id": "mine", "blaxel/rest-00": "{" } };
  expect(fromLabels(toLabels(given))).toMatchObject({ ...given, externalId: undefined });
});

test("foreign labels that look generated are returned as they are", () => {
  expect(fromLabels({ "blaxel/rest-00": "{nope" }).labels).toEqual({ "blaxel/rest-00": "{nope" });
});

test("labels beyond the limit are refused, and none are dropped", () => {
  const many = Object.fromEntries(Array.from({ length: 65 }, (_, index) => [`k${index}`, "v"]));
  expect(() => toLabels({ labels: many })).toThrow(expect.objectContaining({ code: "invalid_request" }));
  const long = { key: "v".repeat(64 * 256) };
  expect(() => toLabels({ labels: long })).toThrow(expect.objectContaining({ code: "invalid_request" }));
});
