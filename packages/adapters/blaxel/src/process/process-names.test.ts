import { type Exec, HoldfastError, isExecId, type ProcessStatus } from "@holdfast/contract";
import type { ExecApi, ProcessApi } from "@holdfast/engine";
import { anExec, aSandbox } from "@holdfast/server/testing";
import { expect, test } from "vitest";
import { commandOf, namedArgv, nameOf, ProcessNames } from "./process-names.ts";

const box = aSandbox();
const named = (name: string, over: Partial<Exec> = {}) =>
  anExec({ sandboxId: box.id, argv: namedArgv("true", name), ...over });

/** Names over these execs, which are listed newest first, two per page. */
function namesAmong(execs: readonly Exec[], row: ProcessStatus = "exited"): ProcessNames {
  const api: Pick<ExecApi, "get" | "list"> = {
    get: async (id) => {
      const found = execs.find((exec) => exec.id === id);
      if (found) return found;
      throw new HoldfastError("exec_not_found");
    },
    list: async (_ref, { cursor }) => {
      const begin = cursor === undefined ? 0 : execs.findIndex(({ id }) => id === cursor) + 1;
      const items = execs.slice(begin, begin + 2);
      return { items, nextCursor: begin + 2 < execs.length ? (items.at(-1)?.id ?? null) : null };
    },
  };
  const processes = { get: async () => ({ status: row }) } as unknown as ProcessApi;
  return new ProcessNames({ execs: api as ExecApi, processes });
}

test("a name is part of the command, and an unnamed process gets a name with its id", () => {
  const exec = named("web / ü");
  expect([nameOf(exec), commandOf(exec)]).toEqual(["web / ü", "true"]);
  const plain = anExec({ id: "exe_1", argv: ["/bin/sh", "-c", "ls"] });
  expect([nameOf(plain), commandOf(plain)]).toEqual(["proc-exe_1", "ls"]);
  const direct = anExec({ id: "exe_2", argv: ["ls", "-l", "/", "x"] });
  expect([nameOf(direct), commandOf(direct)]).toEqual(["proc-exe_2", "ls -l / x"]);
});

test("ids of one name are numbered, and differ between names and sandboxes", async () => {
  const first = await namesAmong([]).nextId(box, "web");
  expect(isExecId(first)).toBe(true);
  const ended = named("web", { id: first, status: "exited" });
  const second = await namesAmong([ended]).nextId(box, "web");
  expect(second).toBe(first.replace(/1$/, "2"));
  const third = await namesAmong([named("web", { id: second, status: "lost" }), ended]).nextId(box, "web");
  expect(third).toBe(first.replace(/1$/, "3"));
  const others = [
    await namesAmong([]).nextId(box, "web2"),
    await namesAmong([]).nextId(aSandbox({ id: "sbx_0000000000000000" }), "web"),
  ];
  expect(new Set([first, ...others]).size).toBe(3);
});

test.each(["queued", "starting", "running"] as const)(
  "a name is taken while its process is %s",
  async (status) => {
    const names = namesAmong([anExec({ id: "exe_1" }), anExec({ id: "exe_2" }), named("web", { status })]);
    await expect(names.nextId(box, "web")).rejects.toMatchObject({ code: "invalid_request" });
  },
);

test("a name is taken between two runs of a restarted process, and free when the process has ended", async () => {
  const run = named("web", { id: "prc_0123456789abcdef-2", status: "exited", exitCode: 1 });
  const waiting = namesAmong([run], "waiting");
  await expect(waiting.nextId(box, "web")).rejects.toMatchObject({ code: "invalid_request" });
  expect(await namesAmong([run], "given_up").nextId(box, "web")).toMatch(/^bl-[0-9a-f]{32}-1$/);
});

test("a process is found by id or name, the last of several, on any page", async () => {
  const last = named("web", { id: "exe_4" });
  const first = named("web", { id: "exe_5", status: "exited" });
  const names = namesAmong([
    anExec({ id: "exe_1" }),
    anExec({ id: "exe_2" }),
    anExec({ id: "exe_3" }),
    last,
    first,
  ]);
  expect(await names.find(box, "web")).toBe(last);
  expect(await names.find(box, "exe_5")).toBe(first);
});

test("a process without a name is found by its generated name, unless another was given that name", async () => {
  const plain = anExec({ id: "exe_1" });
  expect(await namesAmong([plain]).find(box, nameOf(plain))).toBe(plain);
  const other = named(nameOf(plain), { id: "exe_2" });
  expect(await namesAmong([other, plain]).find(box, nameOf(plain))).toBe(other);
});

test("a process of another sandbox is not found, nor is an unknown one", async () => {
  const foreign = named("web", { id: "exe_1", sandboxId: "sbx_0000000000000000", argv: ["true"] });
  const names = namesAmong([foreign]);
  for (const identifier of ["exe_1", "nothing", "../x", "a b"])
    await expect(names.find(box, identifier)).rejects.toMatchObject({ code: "exec_not_found" });
});
