import { HoldfastError } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";
import { translate } from "./keeper-errors.ts";

const FILE = { sandboxId: "sbx_a", path: "/a" };
const EXEC = { sandboxId: "sbx_a", execId: "exec_a" };
const SANDBOX = { sandboxId: "sbx_a" };

function translated(error: Error, about: Parameters<typeof translate>[1]): HoldfastError {
  const result = translate(error, about);
  if (!(result instanceof HoldfastError)) throw new Error("not translated");
  return result;
}
const system = (errno: string) => new KeeperRefusal("system", "it was refused", errno);

describe("a refusal of the keeper", () => {
  it.each([
    [FILE, "too_many_file_calls"],
    [EXEC, "too_many_execs"],
    [SANDBOX, "capacity"],
  ] as const)("at a limit names what is short, and that nothing was done: %o", (about, code) => {
    const error = translated(new KeeperRefusal("limit", "too many open handles on this link"), about);
    expect(error).toMatchObject({ code, dispatched: "no" });
    expect(error.message).toContain("too many open handles");
  });

  it.each([
    [FILE, "ENOENT", "file_not_found"],
    [FILE, "ENOTEMPTY", "file_conflict"],
    [FILE, "ENXIO", "not_a_file"],
    [FILE, "EIO", "system_error"],
    [EXEC, "ENOENT", "system_error"],
    [EXEC, "EPERM", "system_error"],
    [EXEC, "EIO", "system_error"],
    [EXEC, "ENOSPC", "disk_full"],
    [SANDBOX, "EMFILE", "capacity"],
  ] as const)("speaks of a file only in a call on a file: %o %s", (about, errno, code) => {
    expect(translated(system(errno), about)).toMatchObject({ code, dispatched: "yes" });
  });
});

describe("a lost link", () => {
  it("reports whether the call was sent", () => {
    expect(translated(new LinkLost("cut", "unknown"), FILE)).toMatchObject({
      code: "link_lost",
      dispatched: "unknown",
    });
  });
});
