import { expect, test } from "vitest";
import { imageFor } from "./image-aliases.ts";

test("the default image of a client is the host image", () => {
  expect(imageFor("blaxel/base-image:latest")).toBe("host");
});

test("a local image name stands for itself, and configuration overrides the defaults", () => {
  expect(imageFor("debian")).toBe("debian");
  const aliases = { "blaxel/base-image:latest": "debian", "blaxel/node:latest": "node-24" };
  expect(imageFor("blaxel/base-image:latest", aliases)).toBe("debian");
  expect(imageFor("blaxel/node:latest", aliases)).toBe("node-24");
  expect(imageFor("blaxel/base-image", aliases)).toBe("host");
});

test.each(["blaxel/jupyter-server", "Not A Name", "", "constructor/x", "../host"])(
  "%j is not an image",
  (name) => {
    expect(() => imageFor(name)).toThrow(expect.objectContaining({ code: "image_not_found" }));
  },
);
