import { ALERT_KINDS, NUMBERS, type Numbers } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { readProfile } from "../src/profiles.ts";
import * as dashboard from "./grafana-dashboard.ts";
import * as prometheus from "./prometheus-rules.ts";

const runbook: Numbers = { ...NUMBERS, ...readProfile("runbook").numbers };

interface Rule {
  alert: string;
  expr: string;
  for: string | undefined;
  labels: Record<string, string>;
  summary: string;
}

/** The subset of YAML that the generator writes. */
const LINE =
  /^(#.*|groups:| {2}- name: \w+| {4}rules:| {6}- alert: \w+| {8}(expr: ".*"|(for|keep_firing_for): \d+[smh]|labels:|annotations:)| {10}(\w+: \w+|summary: ".*"))$/;

function parse(text: string): Rule[] {
  const rules: Rule[] = [];
  for (const line of text.trimEnd().split("\n")) {
    expect(line).toMatch(LINE);
    const [, name = "", value = ""] = /^\s*(?:- )?(\w+): (.+)$/.exec(line) ?? [];
    const plain = value.startsWith('"') ? (JSON.parse(value) as string) : value;
    if (name === "alert") rules.push({ alert: plain, expr: "", for: undefined, labels: {}, summary: "" });
    const rule = rules.at(-1);
    if (rule === undefined) continue;
    if (name === "expr" || name === "for" || name === "summary") rule[name] = plain;
    else if (line.startsWith("          ")) rule.labels[name] = plain;
  }
  return rules;
}

const isBalanced = (text: string): boolean =>
  ["()", "{}", "[]"].every(
    ([open = "", close = ""]) => text.split(open).length === text.split(close).length,
  ) && text.split('"').length % 2 === 1;

describe("the Prometheus rules", () => {
  test("contain one for every kind of alert that is on, each with its own name or labels", async () => {
    const missing = (rules: Rule[]) => {
      const kinds = new Set(rules.map(({ labels }) => labels.kind));
      return ALERT_KINDS.filter((kind) => !kinds.has(kind));
    };
    const off = ["too_many_active", "active_escalation", "running_long"];
    expect(missing(parse(await prometheus.generate()))).toEqual(off);
    const rules = parse(await prometheus.generate(runbook));
    expect(missing(rules)).toEqual([]);
    const names = rules.map(({ alert, labels }) => JSON.stringify([alert, labels]));
    expect(new Set(names).size).toBe(names.length);
    for (const { expr, summary, labels } of rules) {
      expect(isBalanced(expr)).toBe(true);
      expect(summary).not.toBe("");
      expect(["info", "warning", "critical"]).toContain(labels.severity);
    }
  });

  test("have the thresholds of the given numbers", async () => {
    const rules = parse(
      await prometheus.generate({
        ...runbook,
        alertActive: 7,
        alertStuckMs: 90_000,
        alertEscalationForMs: 7_200_000,
        alertCapacityPercent: 66,
        auditEveryMs: 100_000,
      }),
    );
    const exprOf = (kind: string) => rules.find(({ labels }) => labels.kind === kind)?.expr;
    expect(exprOf("too_many_active")).toBe("holdfast_sandboxes_active > 7");
    expect(exprOf("stuck")).toBe("holdfast_stuck_seconds_max > 90");
    expect(exprOf("capacity")).toBe("holdfast_capacity_used_percent > 66");
    expect(exprOf("audit_overdue")).toBe("holdfast_audit_age_seconds > 220");
    expect(rules.find(({ labels }) => labels.kind === "active_escalation")?.for).toBe("2h");
  });
});

interface Panel {
  id: number;
  type: string;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: { expr: string }[];
  fieldConfig?: { defaults: { thresholds: { steps: { value: number | null }[] } } };
}

describe("the Grafana dashboard", () => {
  const panelsOf = async (numbers = NUMBERS as Parameters<typeof dashboard.generate>[0]) =>
    (JSON.parse(await dashboard.generate(numbers)) as { panels: Panel[] }).panels;

  test("has panels that do not overlap, each with its own id and query", async () => {
    const panels = await panelsOf();
    expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
    const taken = new Set<string>();
    for (const { gridPos, type, targets = [] } of panels) {
      expect(gridPos.x + gridPos.w).toBeLessThanOrEqual(24);
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x += 1)
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y += 1) {
          expect(taken.has(`${x} ${y}`)).toBe(false);
          taken.add(`${x} ${y}`);
        }
      expect(targets.length > 0).toBe(type !== "row");
      for (const { expr } of targets) expect(isBalanced(expr)).toBe(true);
    }
  });

  test("draws no threshold for an alert that is off", async () => {
    const stepsOf = async (numbers: Numbers) =>
      (await panelsOf(numbers)).find(({ title }) => title === "Active sandboxes")?.fieldConfig?.defaults
        .thresholds.steps;
    expect(await stepsOf(NUMBERS)).toHaveLength(1);
    expect((await stepsOf(runbook))?.at(-1)?.value).toBe(20);
  });

  test("draws the thresholds of the given numbers", async () => {
    const panels = await panelsOf({ ...NUMBERS, alertTimeoutPercent: 9 });
    const timeouts = panels.filter(({ title }) => title === "Timeouts");
    expect(timeouts).toHaveLength(2);
    for (const { fieldConfig } of timeouts)
      expect(fieldConfig?.defaults.thresholds.steps.at(-1)?.value).toBe(9);
  });
});
