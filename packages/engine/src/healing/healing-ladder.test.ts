import { type Cause, NUMBERS, type Status } from "@holdfast/contract";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Act, dueInMs, type Episode, nextStep, reasonToEnd } from "./healing-ladder.ts";

const TICK = 1_000;
const ok = { status: "ready", cause: null } as const;
const down = (code: string): { status: Status; cause: Cause } => ({
  status: "degraded",
  cause: { code, message: `it is ${code}` },
});

/** Feeds the statuses to the ladder, one per tick, and returns its acts with their times. */
function live(
  seen: readonly { status: Status; cause: Cause | null }[],
  { healsLately = 0, episode = null as Episode | null } = {},
) {
  const acts: { at: number; act: Act }[] = [];
  let current = episode;
  seen.forEach((one, index) => {
    const time = { now: index * TICK, passedMs: TICK };
    const next = nextStep(current, { ...one, healsLately }, time, NUMBERS);
    current = next.episode;
    if (next.act !== null) acts.push({ at: index, act: next.act });
  });
  return { acts, episode: current, done: acts.map(({ act }) => act.do) };
}

const times = <Value>(count: number, value: Value): Value[] => Array.from({ length: count }, () => value);

describe("the ladder", () => {
  it("takes no step if the sandbox heals by itself", () => {
    expect(live([...times(4, down("link_down")), ok, ok])).toMatchObject({ done: [], episode: null });
  });

  it.each([
    ["keeper_stopped", ["thaw", "thaw", "relink", "relink", "restart"]],
    ["frozen", ["thaw", "thaw", "restart"]],
    ["root_unmounted", ["remount", "remount", "restart"]],
    ["disk_unmounted", ["remount", "remount", "restart"]],
    ["keeper_missing", ["restart"]],
    ["instance_replaced", ["restart"]],
    ["disk_failed", ["restart"]],
    ["cgroup_gone", ["restart"]],
    ["journals_gone", ["restart"]],
    ["socket_gone", ["restart"]],
  ])("takes the steps for %s from the gentlest to the last", (code, steps) => {
    const { done } = live(times(100, down(code)));
    expect(done.slice(0, steps.length)).toEqual(steps);
  });

  it.each(["link_down", "keeper_silent", "proof_failed", "unproven"])(
    "ends nothing for %s, which a busy host can bring about, before it has lasted",
    (code) => {
      const patience = NUMBERS.healGiveUpMs / TICK;
      const { acts } = live(times(patience + 200, down(code)));
      const last = acts.find(({ act }) => act.do === "restart");
      expect(last?.at).toBeGreaterThanOrEqual(patience);
      expect(acts.filter(({ at }) => at < patience).map(({ act }) => act.do)).not.toContain("restart");
    },
  );

  it.each(["files_gone", "control_gone", "disk_gone", "host_disk_failed"])(
    "takes no step for %s, because a restart could not start the sandbox again",
    (code) => {
      expect(live(times(2_000, down(code)))).toMatchObject({ done: [], episode: null });
      const { done } = live([...times(8, down("link_down")), ...times(2_000, down(code))]);
      expect(done).not.toContain("restart");
    },
  );

  it.each(["mount_broken", "disk_filler", "observation_unknown", "lease_lost", "keeper_died"])(
    "leaves %s to those who deal with it",
    (code) => {
      expect(live(times(2_000, down(code)))).toMatchObject({ done: [], episode: null });
    },
  );

  it("keeps the episode, and counts no time, while the state is unknown", () => {
    const blinking = Array.from({ length: 200 }, (_, i) =>
      down(i % 10 === 9 ? "observation_unknown" : "frozen"),
    );
    expect(live(blinking).done.slice(0, 3)).toEqual(["thaw", "thaw", "restart"]);
    expect(live([...times(8, down("frozen")), ...times(5_000, down("observation_unknown"))]).done).toEqual([
      "thaw",
    ]);
  });

  it("counts a sandbox as healed only after it has served for a while", () => {
    const held = NUMBERS.healHoldMs / TICK;
    const broken = times(NUMBERS.healAfterMs / TICK + 2, down("frozen"));
    const { acts } = live([...broken, ...times(held + 3, ok)]);
    expect(acts.map(({ act }) => act.do).slice(0, 2)).toEqual(["thaw", "confirm"]);
    expect((acts[1]?.at ?? 0) - (acts[0]?.at ?? 0)).toBeGreaterThanOrEqual(held);
  });

  it("continues with the next step after a single lucky probe", () => {
    const moment = [...times(8, down("frozen")), ...times(3, ok)];
    const { done } = live([...moment, ...moment, ...moment, ...moment]);
    expect(done).toEqual(["thaw", "thaw", "restart", "restart"]);
  });

  it("keeps the episode across the restart that it requested", () => {
    const { episode } = live([
      ...times(8, down("keeper_missing")),
      { status: "queued", cause: null },
      { status: "creating", cause: null },
      ok,
    ]);
    expect(episode).toMatchObject({ step: "hold", by: "restart" });
  });

  it("stops when the sandbox is paused, deleted or suspended", () => {
    for (const status of ["paused", "stopping", "suspending", "standby", "failed"] as const)
      expect(live([...times(8, down("frozen")), { status, cause: null }]).episode).toBeNull();
  });

  it("goes to the last step at once if the sandbox was healed too often, and says so", () => {
    const { acts } = live(times(8, down("frozen")), { healsLately: NUMBERS.healsMax });
    expect(acts[0]?.act).toMatchObject({
      do: "restart",
      cause: { code: "keeps_breaking", cause: { code: "frozen" } },
    });
  });

  it("withdraws a restart if a new observation shows a gentler cause, or that the sandbox serves", () => {
    const { episode, done } = live(times(100, down("keeper_stopped")));
    expect(done).toContain("restart");
    if (episode === null) throw new Error("there is no episode");
    const after = (seen: { status: Status; cause: Cause | null }, healsLately = 0) =>
      reasonToEnd({ ...episode, unservedMs: NUMBERS.healAfterMs }, { ...seen, healsLately }, NUMBERS)?.code;
    expect(after(down("keeper_stopped"))).toBe("keeper_stopped");
    expect(after(down("root_unmounted"))).toBeUndefined();
    expect(after(down("link_down"))).toBeUndefined();
    expect(after(down("observation_unknown"))).toBeUndefined();
    expect(after(ok)).toBeUndefined();
    expect(after(down("link_down"), NUMBERS.healsMax)).toBe("keeps_breaking");
  });

  it("counts ticks, so that a clock jump does not make a sandbox look broken for long", () => {
    let episode: Episode | null = null;
    const acts: Act[] = [];
    for (const now of [0, 1_000, 86_400_000, 5_000, 6_000]) {
      const next = nextStep(
        episode,
        { ...down("link_down"), healsLately: 0 },
        { now, passedMs: TICK },
        NUMBERS,
      );
      episode = next.episode;
      if (next.act) acts.push(next.act);
    }
    expect(acts.map((act) => act.do)).not.toContain("restart");
  });

  it("predicts correctly when its next decision is due", () => {
    const { episode } = live(times(3, down("frozen")));
    if (episode === null) throw new Error("there is no episode");
    const ticks = Math.ceil(dueInMs(episode, NUMBERS) / TICK);
    expect(live(times(ticks - 1, down("frozen")), { episode }).done).toEqual([]);
    expect(live(times(ticks, down("frozen")), { episode }).done).toEqual(["thaw"]);
  });
});

describe("for any sequence of statuses, the ladder", () => {
  const codes = [
    "keeper_stopped",
    "frozen",
    "root_unmounted",
    "link_down",
    "proof_failed",
    "mount_broken",
    "disk_filler",
  ];
  const seen = fc.oneof(
    { weight: 3, arbitrary: fc.constant(ok) },
    { weight: 5, arbitrary: fc.constantFrom(...codes).map(down) },
    {
      weight: 1,
      arbitrary: fc
        .constantFrom("paused", "creating", "suspending")
        .map((status) => ({ status: status as Status, cause: null })),
    },
  );

  it("acts only on a sandbox that is not serving, and never ends one that served a moment ago", () => {
    fc.assert(
      fc.property(fc.array(seen, { maxLength: 300 }), (all) => {
        for (const { at, act } of live(all).acts) {
          const moment = all[at];
          if (act.do === "confirm") expect(moment?.status).toBe("ready");
          else expect(moment?.status).toBe("degraded");
          if (act.do !== "restart") continue;
          const lately = all.slice(Math.max(0, at - NUMBERS.healAfterMs / TICK + 1), at + 1);
          expect(lately.every(({ status }) => status === "degraded")).toBe(true);
        }
      }),
    );
  });

  it("tries each gentle step a bounded number of times before the last", () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...codes).map(down), { maxLength: 400 }), (all) => {
        const until = live(all).done;
        const end = until.indexOf("restart");
        const before = end < 0 ? until : until.slice(0, end);
        for (const step of ["relink", "thaw", "remount"] as const)
          expect(before.filter((one) => one === step).length).toBeLessThanOrEqual(
            2 * NUMBERS.healTriesPerRung,
          );
      }),
    );
  });
});
