import { expect, test } from "vitest";
import { generate } from "../../../daemon/src/write-openapi.ts";

type Operation = {
  operationId: string;
  summary: string;
  requestBody?: { content: object };
  responses: object;
};
type Document = {
  openapi: string;
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, object> };
};

test("every operation has a unique name, a summary, a response and its errors", async () => {
  const document = JSON.parse(await generate()) as Document;
  expect(document.openapi).toBe("3.1.0");
  const operations = Object.values(document.paths).flatMap((path) => Object.values(path));
  expect(operations.length).toBeGreaterThan(25);
  expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(operations.length);
  for (const { summary, responses } of operations) {
    expect(summary).toMatch(/\.$/);
    expect(Object.keys(responses).some((status) => status.startsWith("2") || status === "101")).toBe(true);
    expect(Object.keys(responses)).toContain("500");
  }
});

test("every operation with a JSON body documents size and type errors", async () => {
  const document = JSON.parse(await generate()) as Document;
  const operations = Object.values(document.paths).flatMap((path) => Object.values(path));
  const taking = operations.filter(({ requestBody }) => "application/json" in (requestBody?.content ?? {}));
  expect(taking.length).toBeGreaterThan(4);
  for (const { responses } of taking) {
    expect(Object.keys(responses)).toEqual(expect.arrayContaining(["413", "415"]));
  }
});

test("every reference resolves", async () => {
  const text = await generate();
  const document = JSON.parse(text) as Document;
  const references = [...text.matchAll(/"\$ref": "([^"]+)"/g)].map((match) => match[1] ?? "");
  expect(references.length).toBeGreaterThan(50);
  for (const reference of references) {
    expect(document.components.schemas).toHaveProperty(reference.replace("#/components/schemas/", ""));
  }
});
