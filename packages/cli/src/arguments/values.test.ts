import { describe, expect, it } from "vitest";
import { signalName } from "../commands/exec/execs.ts";
import { age, ahead, asJson, elapsed, jsonText, printable, size, table } from "../output/table.ts";
import { DetachWatch, detachKeys } from "../terminal/detach-keys.ts";
import { withoutQueries } from "../terminal/scrollback.ts";
import { isPlainName, parsePlace, targetOf } from "../transfer/place.ts";
import { commandOf, duration, durationOrNone, megabytes, moment, mount, port, variable } from "./values.ts";

describe("values on the command line", () => {
  it("accepts none as a duration where allowed", () => {
    expect(["2h", "none"].map(durationOrNone)).toEqual([7_200_000, "none"]);
    for (const wrong of ["", "never", "None"]) expect(() => durationOrNone(wrong)).toThrow();
  });

  it("rejects ports outside 1-65535", () => {
    expect(["1", "3000", "65535"].map((text) => port(text))).toEqual([1, 3_000, 65_535]);
    for (const wrong of ["", "0", "65536", "-1", "3e3", "080", "http"]) expect(() => port(wrong)).toThrow();
  });

  it("parses durations with a unit, or in seconds", () => {
    expect(["500ms", "30s", "30", "1.5m", "2h"].map(duration)).toEqual([
      500, 30_000, 30_000, 90_000, 7_200_000,
    ]);
    for (const wrong of ["", "x", "-1s", "0", "5 m", "1e3", "10d"]) expect(() => duration(wrong)).toThrow();
  });

  it("parses times relative to now, or as a date or time", () => {
    const ago = (text: string) => Math.round((Date.now() - moment(text).getTime()) / 1_000);
    expect(["90s", "10m", "2h", "1d"].map(ago)).toEqual([90, 600, 7_200, 86_400]);
    expect(moment("2026-01-31T12:00:00+02:00").toISOString()).toBe("2026-01-31T10:00:00.000Z");
    expect(moment("2026-01-31").toISOString()).toBe("2026-01-31T00:00:00.000Z");
    expect(moment("2026-01-31 12:00").getTime()).toBe(new Date(2026, 0, 31, 12).getTime());
    for (const wrong of ["", "x", "10", "-5m", "5 m", "yesterday", "12:00", "2026-13-01", "2026"])
      expect(() => moment(wrong)).toThrow();
  });

  it("parses sizes with a unit, or in megabytes", () => {
    expect(["512", "512m", "2g", "1.5GB"].map(megabytes)).toEqual([512, 512, 2048, 1536]);
    for (const wrong of ["", "m", "1t", "-5"]) expect(() => megabytes(wrong)).toThrow();
  });

  it("collects variables, keeps '=' in values, and copies local values by name", () => {
    process.env.HOLDFAST_TEST_VALUE = "from here";
    const both = variable("HOLDFAST_TEST_VALUE", variable("A=b=c"));
    delete process.env.HOLDFAST_TEST_VALUE;
    expect(both).toEqual({ A: "b=c", HOLDFAST_TEST_VALUE: "from here" });
    expect(() => variable("=x")).toThrow();
  });

  it("collects mounts, which may be of a part of a drive and read-only", () => {
    expect(mount("data:/workspace")).toEqual([{ drive: "data", path: "/workspace" }]);
    expect(mount("data/a/b:/models:ro", mount("drv_1:/x:y"))).toEqual([
      { drive: "drv_1", path: "/x:y" },
      { drive: "data", subpath: "/a/b", path: "/models", readOnly: true },
    ]);
    for (const wrong of ["", "data", "data:", "data:workspace", ":/workspace", "/data:/workspace"])
      expect(() => mount(wrong)).toThrow();
  });

  it("removes only the separator before a command", () => {
    expect(commandOf(["--", "ls", "--", "-l"])).toEqual(["ls", "--", "-l"]);
    expect(commandOf(["ls", "--"])).toEqual(["ls", "--"]);
  });
});

describe("source and target of a copy", () => {
  it("are recognized by their syntax", () => {
    expect(parsePlace("box:/tmp/a:b")).toEqual({ kind: "sandbox", name: "box", path: "/tmp/a:b" });
    expect(parsePlace("drive:data:/a:b")).toEqual({ kind: "drive", name: "data", path: "/a:b" });
    expect(parsePlace("drive:/tmp")).toEqual({ kind: "sandbox", name: "drive", path: "/tmp" });
    expect(parsePlace("./box:/tmp")).toEqual({ kind: "local", path: "./box:/tmp" });
    expect(parsePlace("/a:b")).toEqual({ kind: "local", path: "/a:b" });
    expect(parsePlace("-")).toEqual({ kind: "stdio" });
    for (const wrong of ["box:tmp", "drive:data", "drive:data:a"])
      expect(() => parsePlace(wrong)).toThrow("not absolute");
  });

  it("follow the rules of cp -r", () => {
    expect(targetOf("a.txt", "/tmp", true)).toBe("/tmp/a.txt");
    expect(targetOf("a.txt", "/tmp/b.txt", false)).toBe("/tmp/b.txt");
    expect(targetOf("a.txt", "/tmp/new/", false)).toBe("/tmp/new/a.txt");
    expect(targetOf("/src/dir/", "/tmp", true)).toBe("/tmp/dir");
    expect(targetOf("/src/dir/.", "/tmp", true)).toBe("/tmp");
  });

  it("reject names that could lead elsewhere", () => {
    for (const name of ["", ".", "..", "a/b", "../x", "a\0"]) expect(isPlainName(name)).toBe(false);
    for (const name of ["...", "a b", ".hidden", "ü"]) expect(isPlainName(name)).toBe(true);
  });
});

describe("listings", () => {
  it("escape control characters", () => {
    expect(printable("a\x1b[2Jb\nc\x9b")).toBe("a\\x1b[2Jb\\x0ac\\x9b");
    expect(table(["A"], [["\x1b[31m"]])).toBe("A\n\\x1b[31m\n");
  });

  it("escape bidirectional controls and line separators, and leave other scripts unchanged", () => {
    expect(printable("safe\u202etxt.exe\u2028\u061c\ud800")).toBe(
      "safe\\u{202e}txt.exe\\u{2028}\\u{61c}\\u{d800}",
    );
    expect(printable("Größe 漢字 👩‍💻 עברית")).toBe("Größe 漢字 👩‍💻 עברית");
  });

  it("print JSON with the same value and escaped control characters", () => {
    const value = { name: "a\x1b\x9b\u202e\u2028\n漢" };
    for (const text of [asJson(value), jsonText(value)]) {
      expect(JSON.parse(text)).toEqual(value);
      expect(text.replaceAll("\n", "")).not.toMatch(/[\p{Cc}\u202e\u2028]/u);
    }
  });

  it("align their columns", () => {
    expect(
      table(
        ["A", "LONG"],
        [
          ["wide cell", "x"],
          ["b", ""],
        ],
      ),
    ).toBe("A          LONG\nwide cell  x\nb\n");
  });

  it("show ages and sizes in their largest unit", () => {
    const now = Date.parse("2026-01-02T00:00:00Z");
    expect(age("2026-01-01T23:59:30Z", now)).toBe("30s");
    expect(age("2026-01-01T22:00:00Z", now)).toBe("2h");
    expect([ahead("2026-01-02T00:29:50Z", now), ahead("2026-01-01T23:59:59Z", now)]).toEqual([
      "in 29m",
      "now",
    ]);
    expect([size(999), size(1_572_864)]).toEqual(["999 B", "1.5 MB"]);
  });
});

describe("signals", () => {
  it("are parsed by name, with or without SIG, and by number", () => {
    expect(["INT", "sigterm", "9", "SIGUSR1"].map(signalName)).toEqual([
      "SIGINT",
      "SIGTERM",
      "SIGKILL",
      "SIGUSR1",
    ]);
    for (const wrong of ["", "SIG", "nonsense", "99"]) expect(() => signalName(wrong)).toThrow();
  });
});

describe("times", () => {
  it("between two moments are exact if short", () => {
    const at = (seconds: number) => new Date(seconds * 1000).toISOString();
    expect(elapsed(at(0), at(0.25))).toBe("0.25s");
    expect(elapsed(at(0), at(125))).toBe("2m");
    expect(elapsed(at(0), null, 3_000)).toBe("3.00s");
  });
});

describe("detach keys", () => {
  it("use docker's syntax", () => {
    expect(detachKeys("ctrl-p,ctrl-q")).toEqual([16, 17]);
    expect(detachKeys("ctrl-],x")).toEqual([29, 120]);
    expect(detachKeys("none")).toEqual([]);
    for (const wrong of ["", "ctrl-", "ctrl-pp", "ctrl-p,", "ab"]) expect(() => detachKeys(wrong)).toThrow();
  });

  it("are found however input is split, and no other input is held back", () => {
    const watch = new DetachWatch(detachKeys("a,a,b"));
    const feed = (text: string) => {
      const { passed, isDetached } = watch.feed(Buffer.from(text));
      return [passed.toString(), isDetached];
    };
    expect([feed("xa"), watch.isHolding]).toEqual([["x", false], true]);
    expect(feed("x")).toEqual(["ax", false]);
    expect(feed("aa")).toEqual(["", false]);
    expect(watch.release().toString()).toBe("aa");
    expect(feed("aaa")).toEqual(["a", false]);
    expect(feed("bz")).toEqual(["", true]);
    expect(new DetachWatch([]).feed(Buffer.from("a"))).toMatchObject({ isDetached: false });
  });
});

describe("a scrollback", () => {
  it("removes terminal queries and keeps the rest", () => {
    const shown =
      "a\x1b[6nb\x1b[c\x1b[>0c\x1b[?1;2cc\x1b]11;?\x07d\x1b]4;1;?\x1b\\e\x1b[31mred\x1b[0m\x1b[2J€";
    expect(withoutQueries(Buffer.from(shown)).toString()).toBe("abcde\x1b[31mred\x1b[0m\x1b[2J€");
  });
});
