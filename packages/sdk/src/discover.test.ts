import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { discover } from "./discover.ts";

let directory: string;
let env: NodeJS.ProcessEnv;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "holdfast-discover-"));
  env = { HOLDFAST_DIR: directory };
});
afterEach(() => rm(directory, { recursive: true, force: true }));

describe("the server", () => {
  it("is where its state directory says, with the key that lies there", async () => {
    await writeFile(join(directory, "server.json"), JSON.stringify({ url: "http://127.0.0.1:9" }));
    await writeFile(join(directory, "admin.key"), "hf_secret\n");
    expect(discover({}, env)).toEqual({ url: "http://127.0.0.1:9", apiKey: "hf_secret", problem: undefined });
  });

  it("is where the caller, then the environment says", async () => {
    await writeFile(join(directory, "server.json"), JSON.stringify({ url: "http://127.0.0.1:9" }));
    const both = { ...env, HOLDFAST_URL: "http://env.example", HOLDFAST_API_KEY: "hf_env" };
    expect(discover({}, both)).toMatchObject({ url: "http://env.example", apiKey: "hf_env" });
    const given = { url: "http://given.example", apiKey: "hf_given" };
    expect(discover(given, both)).toMatchObject(given);
  });

  it("of another machine never gets this machine's key", async () => {
    await writeFile(join(directory, "admin.key"), "hf_secret\n");
    for (const url of ["http://example.com", "http://127.0.0.1.example.com", "http://10.0.0.1:4750"]) {
      expect(discover({ url }, env)).toMatchObject({ apiKey: undefined });
      expect(discover({}, { ...env, HOLDFAST_URL: url })).toMatchObject({ apiKey: undefined });
    }
    for (const url of ["http://localhost:1", "http://[::1]:1", "http://127.0.0.1:1"]) {
      expect(discover({ url }, env)).toMatchObject({ apiKey: "hf_secret" });
    }
  });

  it("is looked for where it was while it restarts, and says what is missing", () => {
    expect(discover({}, env, "http://127.0.0.1:77").url).toBe("http://127.0.0.1:77");
    expect(discover({}, env).url).toBe("http://127.0.0.1:4750");
    expect(discover({}, env).problem).toContain("admin.key");
  });
});
