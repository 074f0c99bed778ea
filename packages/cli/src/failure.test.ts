import { ERROR_CODES, ERRORS } from "@holdfast/contract";
import { ExecUnfinishedError, Holdfast, HoldfastError, OutputDroppedError } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { aSandbox, KEY, serve } from "../../server/src/testing/double.ts";
import { Failure, report } from "./failure.ts";
import { Interrupted } from "./interrupt.ts";

const facts = {
  code: "connection",
  message: "It broke.",
  hint: "Mend it.",
  retryable: true,
  dispatched: "unknown",
  status: 0,
  method: "GET",
  url: "http://127.0.0.1/",
  body: "",
  execId: "exe_1",
} as const;

describe("a failure", () => {
  it("is printed as two lines: the message and the hint", () => {
    expect(report(new HoldfastError(facts))).toEqual({
      text: "holdfast: It broke.\nMend it.\n",
      exitCode: 1,
    });
    expect(report(new Failure("no", "Try yes.", 2)).exitCode).toBe(2);
    expect(report(new Interrupted("SIGTERM"))).toEqual({ text: "", exitCode: 143 });
  });

  it("to wait for an exec, or to read all its output, names the command that continues", () => {
    const unfinished = new ExecUnfinishedError(facts, { id: "exe_1", exec: null, cursor: null });
    expect(report(unfinished).text).toContain("holdfast attach exe_1");
    const dropped = new OutputDroppedError({ ...facts, floor: "exe_1.9" });
    expect(report(dropped).text).toContain("holdfast logs -f --since-cursor exe_1.9 exe_1");
    expect(report(new OutputDroppedError({ ...facts, floor: null })).text).toContain("Mend it.");
  });
});

describe("an error of the server", () => {
  const reported = (code: HoldfastError["code"], message: string, hint = "") =>
    report(new HoldfastError({ ...facts, code, message, hint })).text;

  it("is worded without requests, fields and headers, whatever its code is", () => {
    // The CLI cannot cause this error, whose message names a header.
    const codes = ERROR_CODES.filter((code) => code !== "idempotency_conflict");
    for (const code of codes)
      expect(reported(code, ERRORS[code].message, ERRORS[code].hint)).not.toMatch(
        /\b(GET|POST|PUT|PATCH|DELETE|Authorization|Idempotency|ifExists|openapi|dispatched|subpath|floor)\b|[/]v1|[/]docs|wake=|lifecycle\.|[Ss]end the (same )?request|[Rr]etry the same request|schema/,
      );
  });

  it("about several limits names their options", () => {
    const size = "memoryMb is 102400, but this host has 24105 MB of memory; cpus is 64, but this host has 2.";
    expect(reported("invalid_request", size, "Compare the request with the schema.")).toBe(
      "holdfast: --memory is 102400 MB, but this host has 24105 MB of memory; --cpus is 64, but this host has 2.\n",
    );
  });

  it("about a value without its field names the option", () => {
    const path = "cwd must be an absolute path without '..'.";
    expect(reported("invalid_path", path)).toContain("--cwd must be an absolute path");
  });

  it("about a paused sandbox names the command that resumes it, and no request", () => {
    const message = "The sandbox is paused. Resume it first: POST …/resume, or 'holdfast resume'.";
    const paused = new HoldfastError({ ...facts, code: "wrong_state", message, sandboxId: "sbx_1" });
    expect(report(paused).text).toBe("holdfast: The sandbox is paused.\nRun 'holdfast resume sbx_1'.\n");
  });

  it("about a failed sandbox prints the cause", () => {
    const cause = { code: "disk_gone", message: "The disk is gone." };
    const failed = new HoldfastError({
      ...facts,
      status: 410,
      code: "sandbox_failed",
      message: "It failed.",
      cause,
    });
    expect(report(failed).text).toMatch(/^holdfast: It failed\. \(The disk is gone\.\)\n'holdfast diagnose'/);
  });

  it("keeps the hint that says where the key was looked for, and that an earlier attempt may have worked", () => {
    expect(reported("unauthorized", "No.", "/state/admin.key is missing.")).toContain("/state/admin.key");
    const hint = "Choose another name. An earlier attempt of the same request may have taken effect.";
    expect(reported("name_taken", "Taken.", hint)).toMatch(/--if-exists return.*An earlier attempt may have/);
  });
});

describe("what the server says about a request", () => {
  const HINT = "Add --help to see what the command accepts.\n";
  const NAME = "the name is not valid: use up to 63 lower-case letters";

  it.each<[words: string, call: (holdfast: Holdfast) => Promise<unknown>]>([
    ["--memory must be at least 16 MB.", (to) => to.sandboxes.create({ resources: { memoryMb: 1 } })],
    [
      "--ttl must be at most 31536000000 ms.",
      async (to) => (await box(to)).update({ lifecycle: { expiresInMs: 10 ** 12 } }),
    ],
    [
      '--label has the invalid key "a b": use KEY=VALUE with',
      (to) => to.sandboxes.create({ labels: { "a b": "c" } }),
    ],
    [
      '--env has the invalid key "1A": use KEY=VALUE with',
      (to) => to.sandboxes.create({ env: { "1A": "2" } }),
    ],
    [
      "--label must not have more than 256 characters.",
      (to) => to.sandboxes.create({ labels: { name: "x".repeat(300) } }),
    ],
    [
      "--mount must be string.",
      (to) => to.sandboxes.create({ mounts: [{ drive: "data", path: 5 as unknown as string }] }),
    ],
    [NAME, (to) => to.images.remove("a b")],
    ["the name or id must not be empty.", (to) => to.sandboxes.get("")],
    [
      "the port must be at most 65535.",
      async (to) => (await box(to)).processes.start("web", "x", { readyWhen: { port: 99_999 } }),
    ],
    [
      "--on-wake is not valid: use a signal such as HUP.",
      async (to) => (await box(to)).exec("x", { onWake: { signal: "hup" } }),
    ],
    [
      "--user is not valid: use a name, or uid[:gid].",
      async (to) => (await box(to)).exec("x", { user: "a b" }),
    ],
  ])("becomes %s", async (words, call) => {
    const text = await answerTo(call);
    expect(text).toContain(`holdfast: ${words}`);
    expect(text).toContain(HINT);
  });

  it("is worded completely if it is about several fields", async () => {
    const text = await answerTo((to) =>
      to.sandboxes.create({ name: "Not A Name", resources: { memoryMb: 1 }, labels: { "a b": "c" } }),
    );
    expect(text).toContain(NAME);
    expect(text).toContain("; --memory must be at least 16 MB");
    expect(text).toContain('; --label has the invalid key "a b": use');
    expect(text).not.toMatch(/body|memoryMb|\^/);
  });
});

const box = (holdfast: Holdfast) => holdfast.sandboxes.get("box");

/** Returns what the CLI prints when a call to a real HTTP layer fails. */
async function answerTo(call: (holdfast: Holdfast) => Promise<unknown>): Promise<string> {
  await using server = await serve({ sandboxes: { get: async () => aSandbox() } });
  const holdfast = new Holdfast({ url: server.url, apiKey: KEY });
  const error: unknown = await call(holdfast).catch((thrown: unknown) => thrown);
  holdfast.close();
  return report(error).text;
}
