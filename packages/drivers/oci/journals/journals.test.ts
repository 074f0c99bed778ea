import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type ExecId,
  type InstallationId,
  newExecId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import type { JournalRecord } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { run as runInKeeper, TestKeeper } from "../../../keeper/src/testing/test-keeper.ts";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { type Layout, layoutOf, makeLayout } from "../machine/layout.ts";
import { testMachine } from "../testing/test-machine.ts";
import { OciJournals } from "./journals.ts";

const soon = (): AbortSignal => AbortSignal.timeout(20_000);

interface Place {
  layout: Layout;
  journals: OciJournals;
  sandboxId: SandboxId;
  /** Directory in which the sandbox's keeper writes journals. */
  directory: string;
  pathOf(id: ExecId): string;
  write(bytes: Uint8Array): ExecId;
}

/** Creates a state directory with one sandbox, whose journals directory is empty. */
function place(): Place {
  const stateDir = mkdtempSync(join(tmpdir(), "holdfast-journals-"));
  onTestFinished(() => rmSync(stateDir, { recursive: true, force: true }));
  const layout = layoutOf(stateDir, "install1" as InstallationId);
  makeLayout(layout, 0);
  const sandboxId = newSandboxId();
  const directory = layout.sandbox(sandboxId).journals;
  mkdirSync(directory, { recursive: true });
  const pathOf = (id: ExecId) => join(directory, id);
  const write = (bytes: Uint8Array): ExecId => {
    const id = newExecId();
    writeFileSync(pathOf(id), bytes);
    return id;
  };
  return {
    layout,
    journals: new OciJournals({ layout, porter: new Porter(), idBase: 0 }),
    sandboxId,
    directory,
    pathOf,
    write,
  };
}

/** Like `place`, with the control directory of a keeper that runs without a sandbox. */
function placeOver(keeper: TestKeeper): Place {
  const made = place();
  const { control } = made.layout.sandbox(made.sandboxId);
  rmSync(control, { recursive: true });
  symlinkSync(join(keeper.directory, "control"), control);
  return made;
}

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value | 0);
  return bytes;
};
const u64 = (value: number): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const str = (text: string): Buffer => Buffer.concat([u32(text.length), Buffer.from(text)]);

type Kind = 1 | 2 | 3;
const record = (kind: Kind, data: Uint8Array | string, at = 1_000): Buffer =>
  Buffer.concat([
    Buffer.from("HFJ1"),
    u32(kind),
    u32(data.length),
    u32(0),
    u64(at * 1_000),
    Buffer.from(data),
  ]);

/** Builds the data of an exit record. States: 1 running, 2 exited. */
const exit = (id: string, exitCode: number, state = 2): Buffer =>
  Buffer.concat([
    str(id),
    Buffer.from([state]),
    u32(7),
    u32(exitCode),
    u32(0),
    str(""),
    u64(1),
    u64(2),
    u64(0),
    u64(999_999),
    str("d"),
  ]);

/** Reads a journal to its end, `maxBytes` at a time. */
async function readAll({ journals, sandboxId }: Place, id: ExecId, maxBytes: number, cursor = 0) {
  const records: JournalRecord[] = [];
  for (;;) {
    const slice = await journals.read(sandboxId, id, { cursor, maxBytes }, soon());
    if (slice === null) return null;
    records.push(...slice.records);
    if (!slice.more) return { ...slice, records };
    expect(slice.next).toBeGreaterThan(cursor);
    cursor = slice.next;
  }
}

const anyRecords = fc.array(
  fc.record({
    kind: fc.constantFrom<Kind>(1, 2),
    data: fc.oneof(
      fc.uint8Array({ maxLength: 40 }),
      fc.constantFrom(0, 1, 24, 65_535, 65_536).map((size) => Buffer.alloc(size)),
      fc.constant(record(3, exit("inner", 0))),
    ),
    at: fc.integer({ min: 0, max: 4_000_000_000_000 }),
  }),
  { maxLength: 30 },
);
const bytesOf = (records: readonly { kind: Kind; data: Uint8Array; at: number }[]): Buffer =>
  Buffer.concat(records.map(({ kind, data, at }) => record(kind, data, at)));

describe("reading", () => {
  test("reads return what was written, in slices of any size, and every cursor is valid", async () => {
    const there = place();
    const property = fc.asyncProperty(
      anyRecords,
      fc.oneof(fc.nat({ max: 200 }), fc.nat({ max: 2_000_000 })),
      fc.nat(),
      async (written, maxBytes, pick) => {
        const id = there.write(bytesOf(written));
        const read = await readAll(there, id, maxBytes);
        const plain = read?.records.map(({ stream, at, data }) => [stream, at, Buffer.from(data)]);
        expect(plain).toEqual(
          written.map(({ kind, at, data }) => [kind === 1 ? "stdout" : "stderr", at, Buffer.from(data)]),
        );
        expect(read).toMatchObject({ floor: 0, next: statSync(there.pathOf(id)).size, more: false });
        const index = pick % (written.length + 1);
        const cursor = index === 0 ? 0 : (read?.records[index - 1]?.cursor ?? 0);
        expect((await readAll(there, id, maxBytes, cursor))?.records).toEqual(read?.records.slice(index));
      },
    );
    await fc.assert(property, { numRuns: 60 });
  });

  test("a truncated file ends with its last complete record", async () => {
    const there = place();
    const property = fc.asyncProperty(
      anyRecords,
      fc.double({ min: 0, max: 1, noNaN: true }),
      async (written, where) => {
        const bytes = bytesOf(written);
        const size = Math.floor(bytes.length * where);
        const id = there.write(bytes.subarray(0, size));
        const ends = written.map((_, index) => bytesOf(written.slice(0, index + 1)).length);
        const whole = ends.filter((each) => each <= size);
        const end = whole.at(-1) ?? 0;
        const read = await readAll(there, id, 100_000);
        expect(read?.records).toHaveLength(whole.length);
        expect(read).toMatchObject({ next: end, end, more: false });
        expect(await there.journals.end(there.sandboxId, id, soon())).toEqual({ exec: null, end });
      },
    );
    await fc.assert(property, { numRuns: 60 });
  });

  test("a slice is no larger than requested, unless a single record is", async () => {
    const there = place();
    const id = there.write(Buffer.concat([record(1, "a".repeat(100)), record(1, "b"), record(1, "c")]));
    const texts = async (cursor: number, maxBytes: number) => {
      const slice = await there.journals.read(there.sandboxId, id, { cursor, maxBytes }, soon());
      return slice?.records.map(({ data }) => Buffer.from(data).toString()[0]).join("");
    };
    expect(await texts(0, 1)).toBe("a");
    expect(await texts(124, 49)).toBe("b");
    expect(await texts(124, 50)).toBe("bc");
    expect(await texts(174, 50)).toBe("");
  });

  test("a cursor at which no record begins, or past the end, is refused", async () => {
    const there = place();
    const id = there.write(Buffer.concat([record(1, "one"), record(2, "two")]));
    const size = 2 * 27;
    for (const cursor of [1, 26, 28, size - 3, size - 1, size + 1, 1e15]) {
      const read = there.journals.read(there.sandboxId, id, { cursor, maxBytes: 100 }, soon());
      await expect(read, `cursor ${cursor}`).rejects.toMatchObject({
        name: "KeeperRefusal",
        reason: "bad_cursor",
      });
    }
  });

  test("damage in the middle is refused instead of taken for the end; unwritten zeros are the end", async () => {
    const there = place();
    const one = record(1, "one");
    const damaged = there.write(Buffer.concat([one, Buffer.from("x".repeat(100)), one]));
    const first = await there.journals.read(there.sandboxId, damaged, { cursor: 0, maxBytes: 1_000 }, soon());
    expect(first).toMatchObject({ next: one.length, more: true });
    await expect(readAll(there, damaged, 1_000)).rejects.toMatchObject({ reason: "bad_cursor" });
    const unwritten = there.write(Buffer.concat([one, Buffer.alloc(100_000)]));
    expect(await readAll(there, unwritten, 1_000)).toMatchObject({ next: one.length, more: false });
  });

  test.for([0, 5, 65_560, 3 * 65_560 + 1, 10_000_000, 2 ** 40])(
    "the floor after a hole of %i bytes is found, and a cursor in the hole is refused with the floor",
    async (floor) => {
      const there = place();
      const id = newExecId();
      const handle = await open(there.pathOf(id), "w");
      const zeros = Array.from({ length: 40 }, () => record(1, Buffer.alloc(65_536)));
      writeSync(handle.fd, Buffer.concat([...zeros, record(2, "last")]), 0, null, floor);
      await handle.close();
      const slice = await there.journals.read(there.sandboxId, id, { cursor: floor, maxBytes: 1 }, soon());
      expect(slice).toMatchObject({ floor, next: floor + 65_560, more: true });
      for (const cursor of floor === 0 ? [] : [0, floor - 1]) {
        const read = there.journals.read(there.sandboxId, id, { cursor, maxBytes: 1 }, soon());
        await expect(read).rejects.toMatchObject({ reason: "below_floor", floor });
      }
      expect((await readAll(there, id, 1_000_000, floor))?.records).toHaveLength(41);
    },
  );

  test("the floor is found at any offset, even if the zeros before it occupy disk space", async () => {
    const there = place();
    const sizes = fc.array(fc.constantFrom(0, 1_000, 65_536), { minLength: 1, maxLength: 4 });
    const property = fc.asyncProperty(
      fc.nat({ max: 700_000 }),
      sizes,
      async (floor, [first = 0, ...others]) => {
        const records = [first, ...others].map((size) => record(1, Buffer.alloc(size)));
        const id = there.write(Buffer.concat([Buffer.alloc(floor), ...records]));
        const slice = await there.journals.read(there.sandboxId, id, { cursor: floor, maxBytes: 1 }, soon());
        expect(slice).toMatchObject({ floor, next: floor + 24 + first });
        rmSync(there.pathOf(id));
      },
    );
    await fc.assert(property, { numRuns: 150 });
  });
});

describe("a keeper's own journals", () => {
  let keeper: TestKeeper;
  beforeAll(async () => {
    keeper = await TestKeeper.start();
  });
  afterAll(() => keeper?.stop());

  test.for([
    ["lines", "seq 1 20000; seq 1 20000 >&2; seq 1 20000; exit 3"],
    ["zeros", "head -c 4000000 /dev/zero; exit 3"],
  ] as const)(
    "of %s, with holes, are read as the keeper reads them, including the exit",
    async ([, script]) => {
      const there = placeOver(keeper);
      const link = await keeper.connect();
      const order = keeper.order(["/bin/sh", "-c", script], { journalCapBytes: 65_536 });
      const exec = await runInKeeper(link, order);
      expect(exec.journalFloor).toBeGreaterThan(0);
      const records: JournalRecord[] = [];
      for (let cursor = exec.journalFloor, more = true; more; ) {
        const slice = await link.readExec(order.id, { cursor, maxBytes: 262_144, waitMs: 0 }, soon());
        records.push(...slice.records);
        ({ next: cursor, more } = slice);
      }
      const read = await readAll(there, order.id, 100_000, exec.journalFloor);
      expect(read?.records).toEqual(records);
      expect(read?.floor).toBe(exec.journalFloor);
      const below = there.journals.read(there.sandboxId, order.id, { cursor: 0, maxBytes: 1 }, soon());
      await expect(below).rejects.toMatchObject({ reason: "below_floor", floor: exec.journalFloor });
      expect(await there.journals.end(there.sandboxId, order.id, soon())).toEqual({
        exec,
        end: exec.journalEnd,
      });
      expect(exec.exitCode).toBe(3);
    },
  );

  test("a journal that the keeper has forgotten stays readable until it is removed", async () => {
    const there = placeOver(keeper);
    const link = await keeper.connect();
    const order = keeper.order(["echo", "hello"]);
    const exec = await runInKeeper(link, order);
    await link.forgetExec(order.id, { keepJournal: true }, soon());
    expect(Buffer.from((await readAll(there, order.id, 1_000))?.records[0]?.data ?? []).toString()).toBe(
      "hello\n",
    );
    expect(await there.journals.end(there.sandboxId, order.id, soon())).toEqual({
      exec,
      end: exec.journalEnd,
    });
    await there.journals.remove(there.sandboxId, [order.id, newExecId()], soon());
    expect(await readAll(there, order.id, 1_000)).toBeNull();
  });
});

describe("the end", () => {
  const endOf = (there: Place, id: ExecId) => there.journals.end(there.sandboxId, id, soon());
  const write = (there: Place, make: (id: ExecId) => Buffer[]): ExecId => {
    const id = newExecId();
    writeFileSync(there.pathOf(id), Buffer.concat(make(id)));
    return id;
  };

  test("is the exit record, even if output of background children follows", async () => {
    const there = place();
    const id = write(there, (id) => [record(1, "out"), record(3, exit(id, 9)), record(1, "late")]);
    const exec = { id, state: "exited", exitCode: 9, journalFloor: 0, journalEnd: 27 };
    expect(await endOf(there, id)).toMatchObject({ exec, end: 27 });
    expect((await readAll(there, id, 1))?.records.map(({ data }) => Buffer.from(data).toString())).toEqual([
      "out",
      "late",
    ]);
  });

  test("is not an exit record in output, of another exec, or of a running exec", async () => {
    const there = place();
    const forged = (id: ExecId) => record(3, exit(id, 0));
    for (const fake of [
      (id: ExecId) => record(1, forged(id)),
      () => record(3, exit("another", 0)),
      (id: ExecId) => record(3, exit(id, 0, 1)),
      (id: ExecId) => record(3, exit(id, 0, 99)),
      () => record(3, "nonsense"),
    ]) {
      const alone = write(there, (id) => [fake(id)]);
      const { size } = statSync(there.pathOf(alone));
      expect(await endOf(there, alone)).toEqual({ exec: null, end: size });
      appendFileSync(there.pathOf(alone), record(3, exit(alone, 4)));
      expect(await endOf(there, alone)).toMatchObject({ exec: { exitCode: 4 }, end: size });
    }
  });

  test("is found after the largest output that a journal keeps, in small and in large records", async () => {
    const there = place();
    for (const piece of [record(1, "x"), record(1, Buffer.alloc(65_536))]) {
      const output = Buffer.alloc(48 * 1_048_576 - ((48 * 1_048_576) % piece.length), piece);
      const id = write(there, (id) => [output, record(3, exit(id, 1))]);
      expect(await endOf(there, id)).toMatchObject({ exec: { exitCode: 1 }, end: output.length });
      rmSync(there.pathOf(id));
    }
  });

  test("an aborted search ends at once", async () => {
    const there = place();
    const id = there.write(record(1, "x"));
    const reason = new Error("no longer wanted");
    await expect(there.journals.end(there.sandboxId, id, AbortSignal.abort(reason))).rejects.toBe(reason);
  });
});

describe("a hostile journals directory", () => {
  const secret = Buffer.concat([record(1, "secret")]);

  test.for<[string, (path: string, outside: string) => void]>([
    ["a missing file", () => {}],
    ["a link to a journal elsewhere", (path, outside) => symlinkSync(outside, path)],
    ["a dangling link", (path) => symlinkSync("/nowhere", path)],
    ["a link to itself", (path) => symlinkSync(path, path)],
    ["a pipe without a writer", (path) => execFileSync("mkfifo", [path])],
    ["a device", (path) => execFileSync("mknod", [path, "c", "1", "5"])],
    ["a directory", (path) => mkdirSync(path)],
  ])("%s is not read as a journal", async ([, put]) => {
    const there = place();
    const id = newExecId();
    const outside = join(there.layout.stateDir, "outside");
    writeFileSync(outside, secret);
    put(there.pathOf(id), outside);
    expect(await readAll(there, id, 1_000)).toBeNull();
    expect(await there.journals.end(there.sandboxId, id, soon())).toBeNull();
    await there.journals.remove(there.sandboxId, [id], soon());
    expect(readFileSync(outside)).toEqual(secret);
  });

  test("a link at the path of the journals directory is not followed for reads and removals", async () => {
    const there = place();
    const id = there.write(secret);
    const elsewhere = join(there.layout.stateDir, "elsewhere");
    execFileSync("mv", [there.directory, elsewhere]);
    symlinkSync(elsewhere, there.directory);
    expect(await readAll(there, id, 1_000)).toBeNull();
    await there.journals.remove(there.sandboxId, [id], soon());
    await there.journals.archive(there.sandboxId, soon());
    expect(readFileSync(join(elsewhere, id))).toEqual(secret);
    expect(existsSync(there.directory)).toBe(false);
    expect(await there.journals.archived(soon())).toEqual([]);
  });

  test("invalid ids reach no file", async () => {
    const there = place();
    writeFileSync(join(there.directory, ".spare-0"), secret);
    writeFileSync(join(there.directory, "..", "above"), secret);
    for (const id of [".spare-0", "../above", "", ".", "a/b", "a\0b"] as ExecId[]) {
      expect(await readAll(there, id, 1_000)).toBeNull();
      await there.journals.remove(there.sandboxId, [id], soon());
    }
    expect(existsSync(join(there.directory, ".spare-0"))).toBe(true);
    expect(existsSync(join(there.directory, "..", "above"))).toBe(true);
    await expect(there.journals.drop("../sandboxes" as SandboxId, soon())).rejects.toThrow(
      "valid sandbox id",
    );
  });

  test("a huge sparse file without data is read at once, like an empty one", async () => {
    const there = place();
    const id = there.write(Buffer.alloc(0));
    truncateSync(there.pathOf(id), 2 ** 42);
    expect(await there.journals.end(there.sandboxId, id, soon())).toEqual({ exec: null, end: 2 ** 42 });
    const read = there.journals.read(there.sandboxId, id, { cursor: 0, maxBytes: 1 }, soon());
    await expect(read).rejects.toMatchObject({ reason: "below_floor", floor: 2 ** 42 });
  });

  test("arbitrary bytes are read as records or as the end, or are refused", async () => {
    const there = place();
    const piece = fc.oneof(
      fc.uint8Array({ maxLength: 60 }),
      fc.constant(record(1, "sound")),
      fc.tuple(fc.nat({ max: 26 }), fc.nat({ max: 255 })).map(([at, byte]) => {
        const bytes = record(1, "abc");
        bytes[at] = byte;
        return bytes;
      }),
      fc.nat({ max: 100_000 }).map((size) => Buffer.alloc(size)),
    );
    const property = fc.asyncProperty(
      fc.array(piece, { maxLength: 8 }),
      fc.oneof(fc.constant(0), fc.nat({ max: 300 })),
      async (pieces, cursor) => {
        const id = there.write(Buffer.concat(pieces));
        await readAll(there, id, 100, cursor).catch((error: unknown) =>
          expect(error).toMatchObject({
            name: "KeeperRefusal",
            reason: expect.stringMatching(/^(bad_cursor|below_floor)$/),
          }),
        );
        expect(await there.journals.end(there.sandboxId, id, soon())).toMatchObject({ exec: null });
      },
    );
    await fc.assert(property, { numRuns: 150 });
  });
});

describe("keeping", () => {
  test("kept journals stay readable until the last one is removed", async () => {
    const there = place();
    const { journals, sandboxId, layout } = there;
    const ids = [there.write(record(1, "one")), there.write(record(1, "two"))] as const;
    writeFileSync(join(there.directory, ".spare-0"), "");
    mkdirSync(join(there.directory, "deep", "er"), { recursive: true });
    await journals.archive(sandboxId, soon());
    await journals.archive(sandboxId, soon());
    expect(existsSync(there.directory)).toBe(false);
    expect(await journals.archived(soon())).toEqual([sandboxId]);
    expect(readdirSync(layout.sandbox(sandboxId).archivedJournals).sort()).toEqual([...ids].sort());
    expect((await readAll(there, ids[1], 100))?.records).toHaveLength(1);
    expect(await journals.end(sandboxId, ids[0], soon())).toEqual({ exec: null, end: 27 });
    await journals.remove(sandboxId, [ids[0]], soon());
    expect(await journals.archived(soon())).toEqual([sandboxId]);
    expect(await readAll(there, ids[0], 100)).toBeNull();
    await journals.remove(sandboxId, [ids[1]], soon());
    expect(await journals.archived(soon())).toEqual([]);
    expect(existsSync(layout.sandbox(sandboxId).archivedJournals)).toBe(false);
  });

  test("nothing is kept of a sandbox without journals, or of an unknown sandbox", async () => {
    const there = place();
    writeFileSync(join(there.directory, ".spare-0"), "");
    await there.journals.archive(there.sandboxId, soon());
    await there.journals.archive(newSandboxId(), soon());
    expect(await there.journals.archived(soon())).toEqual([]);
  });

  test("kept journals are not replaced by later ones", async () => {
    const there = place();
    const { journals, sandboxId } = there;
    const first = there.write(record(1, "first"));
    await journals.archive(sandboxId, soon());
    mkdirSync(there.directory);
    const second = there.write(record(1, "second"));
    await journals.archive(sandboxId, soon());
    rmSync(there.layout.sandbox(sandboxId).dir, { recursive: true });
    expect((await readAll(there, first, 100))?.records).toHaveLength(1);
    expect(await readAll(there, second, 100)).toBeNull();
  });

  test("a drop removes everything that was kept of one sandbox, and can be repeated", async () => {
    const there = place();
    const other = newSandboxId();
    mkdirSync(there.layout.sandbox(other).archivedJournals);
    there.write(record(1, "one"));
    mkdirSync(join(there.directory, newExecId(), "deep"), { recursive: true });
    symlinkSync(there.layout.sandboxes, join(there.directory, "link"));
    await there.journals.archive(there.sandboxId, soon());
    await there.journals.drop(there.sandboxId, soon());
    await there.journals.drop(there.sandboxId, soon());
    expect(await there.journals.archived(soon())).toEqual([other]);
    expect(existsSync(there.layout.sandbox(there.sandboxId).dir)).toBe(true);
  });

  test("the output of a destroyed sandbox stays readable, and does not count as a leftover", async () => {
    const machine = await testMachine();
    onTestFinished(machine.dispose);
    const { driver } = machine;
    const { journals } = driver;
    const sandboxId = newSandboxId();
    const link = await driver.connect(await driver.launch(orderFor(sandboxId), soon()), soon());
    await run(link, "echo kept; exit 3");
    const [exec] = await link.listExecs(soon());
    const id = exec?.id ?? newExecId();
    link.close();
    await driver.stop(sandboxId, { graceMs: 0 }, soon());
    await journals.archive(sandboxId, soon());
    await driver.destroy(sandboxId, soon());
    expect(await driver.list(soon())).toEqual([]);
    expect((await driver.observe([sandboxId], soon())).get(sandboxId)).toMatchObject({
      seen: "absent",
      leftovers: [],
    });
    expect(await journals.end(sandboxId, id, soon())).toMatchObject({ exec: { exitCode: 3 } });
    const slice = await journals.read(sandboxId, id, { cursor: 0, maxBytes: 1_000 }, soon());
    expect(Buffer.from(slice?.records[0]?.data ?? []).toString()).toBe("kept\n");
    await journals.remove(sandboxId, [id], soon());
    expect(await journals.archived(soon())).toEqual([]);
  });
});
