import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { MUTATIONS } from "./mutations.ts";

const ENGINE = new URL("../../engine/src/", import.meta.url);

it.each(MUTATIONS.flatMap(({ name, edits }) => edits.map((edit) => ({ name, ...edit }))))(
  "the mutation $name fits $file",
  ({ file, from }) => {
    expect(readFileSync(new URL(file, ENGINE), "utf8")).toContain(from);
  },
);
