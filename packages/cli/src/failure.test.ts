import { ERROR_CODES, ERRORS } from "@holdfast/contract";
import { ExecUnfinishedError, HoldfastError, OutputDroppedError } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
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

  it("names the option instead of the field", () => {
    const hint = "Add --help to see what the command accepts.\n";
    for (const [message, words] of [
      ["body/resources/memoryMb must be >= 16.", "--memory must be at least 16 MB."],
      ["body/lifecycle/expiresInMs must be <= 31536000000.", "--ttl must be at most 31536000000 ms."],
      ["body/labels must not have additional properties.", "--label is not valid: use KEY=VALUE with"],
      ['body/user must match pattern "^[a-z]$".', "--user is not valid: use a name, or uid[:gid]."],
      ['query/name must match pattern "^[a-z]$".', "the name is not valid: use up to 63 lower-case"],
      ["body/mounts/0/path must be string.", "--mount must be string."],
      ["body/unheardOf must be string.", "unheardOf must be string."],
    ] as const) {
      const text = reported("invalid_request", message, "Compare the request with the schema.");
      expect(text).toContain(`holdfast: ${words}`);
      expect(text).toContain(hint);
    }
    const size = "memoryMb is 102400, but this host has 24105 MB of memory; cpus is 64, but this host has 2.";
    expect(reported("invalid_request", size, "Compare the request with the schema.")).toBe(
      "holdfast: --memory is 102400 MB, but this host has 24105 MB of memory; --cpus is 64, but this host has 2.\n",
    );
  });

  it("keeps the hint that says where the key was looked for, and that an earlier attempt may have worked", () => {
    expect(reported("unauthorized", "No.", "/state/admin.key is missing.")).toContain("/state/admin.key");
    const hint = "Choose another name. An earlier attempt of the same request may have taken effect.";
    expect(reported("name_taken", "Taken.", hint)).toMatch(/--if-exists return.*An earlier attempt may have/);
  });
});
