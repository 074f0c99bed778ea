import { existsSync, readdirSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

const schemaOf = (path: string): unknown => {
  const database = new DatabaseSync(path, { readOnly: true });
  const row = database.prepare("SELECT value FROM meta WHERE key = 'schema_version'").get();
  database.close();
  return row?.value;
};

const copiesIn = (dir: string): string[] => readdirSync(dir).filter((name) => name.includes(".schema-"));

it("upgrades the database only in a start that has everything else, and keeps a copy from before", async () => {
  await using server = await TestServer.start();
  const client = server.client();
  const { id } = await client.sandboxes.create({ name: "box" });
  await server.kill("SIGTERM");
  const path = join(server.dir, "holdfast.db");
  const database = new DatabaseSync(path);
  database.exec("DROP TABLE processes; UPDATE meta SET value = '8' WHERE key = 'schema_version'");
  database.close();

  const blocker = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => blocker.once("listening", resolve));
  const address = blocker.address();
  const port = typeof address === "object" && address ? String(address.port) : "";
  const failing = [{ HOLDFAST_PORT: port }, { HOLDFAST_RUNTIME: "/bin/false" }];
  for (const env of failing) {
    await expect(server.start({ env })).rejects.toThrow(/can't start/);
    expect(schemaOf(path)).toBe("8");
    expect(copiesIn(server.dir)).toEqual([]);
  }
  blocker.close();

  await server.start();
  expect(schemaOf(path)).not.toBe("8");
  const [copy] = copiesIn(server.dir);
  expect(schemaOf(join(server.dir, copy ?? ""))).toBe("8");
  expect(server.output).toContain("upgraded the database");
  expect((await server.client().sandboxes.get(id)).info.status).toBe("ready");

  await server.kill("SIGTERM");
  const newer = new DatabaseSync(path);
  newer.exec("UPDATE meta SET value = '999' WHERE key = 'schema_version'");
  newer.close();
  await expect(server.start()).rejects.toThrow(/newer version[\s\S]*\.schema-8\./);
  const back = new DatabaseSync(path);
  back.exec("UPDATE meta SET value = '9' WHERE key = 'schema_version'");
  back.close();
  await server.start();
  expect(existsSync(join(server.dir, "place.json"))).toBe(true);
  client.close();
});
