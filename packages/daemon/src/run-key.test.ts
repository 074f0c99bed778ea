import { expect, test } from "vitest";
import { createRunKey } from "./run-key.ts";

test("a run key stands for the admin key, and differs in every run", () => {
  const store = { findKey: async (secret: string) => (secret === "hf_admin" ? {} : null) };
  const [first, second] = [createRunKey(store, "hf_admin"), createRunKey(store, "hf_admin")];
  expect(first.secret).not.toBe(second.secret);
  expect(first.keys.standsFor?.(first.secret)).toBe("hf_admin");
  expect(second.keys.standsFor?.(first.secret)).toBe(first.secret);
  expect(first.keys.standsFor?.("hf_other")).toBe("hf_other");
});
