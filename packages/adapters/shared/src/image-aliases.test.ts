import { expect, test } from "vitest";
import { readConfig } from "../config.ts";
import { StartFailure } from "../start-failure.ts";
import { imageFor } from "./image-aliases.ts";

const root = { uid: 0, isTerminal: false };

test("the image that a client asks for by default is the host's", () => {
  expect(imageFor("blaxel/base-image:latest")).toBe("host");
});

test("a name of ours means itself, and configuration goes before the defaults", () => {
  expect(imageFor("debian")).toBe("debian");
  const aliases = { "blaxel/base-image:latest": "debian", "blaxel/node:latest": "node-24" };
  expect(imageFor("blaxel/base-image:latest", aliases)).toBe("debian");
  expect(imageFor("blaxel/node:latest", aliases)).toBe("node-24");
  expect(imageFor("blaxel/base-image", aliases)).toBe("host");
});

test.each(["blaxel/jupyter-server", "Not A Name", "", "constructor/x", "../host"])(
  "%j is no image",
  (name) => {
    expect(() => imageFor(name)).toThrow(expect.objectContaining({ code: "image_not_found" }));
  },
);

test("aliases come from the environment", () => {
  const env = { HOLDFAST_IMAGE_ALIASES: '{"blaxel/node:latest":"node-24"}' };
  expect(readConfig(env, root).imageAliases).toEqual({ "blaxel/node:latest": "node-24" });
  expect(readConfig({}, root).imageAliases).toBeUndefined();
});

test.each(["{nope", "[]", "null", '"host"', '{"a/b":1}', '{"a/b":"Not A Name"}'])(
  "a server does not start with the aliases %s",
  (text) => {
    expect(() => readConfig({ HOLDFAST_IMAGE_ALIASES: text }, root)).toThrow(StartFailure);
  },
);
