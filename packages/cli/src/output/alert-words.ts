import type { Alert } from "@holdfast/sdk";
import { age, span, table } from "./table.ts";

/** Formats a value of an alert with its unit. */
function figure(value: number, unit: Alert["unit"]): string {
  if (unit === "ms") return span(value);
  return `${Math.round(value * 10) / 10}${unit === "percent" ? " %" : ""}`;
}

export const alertTable = (alerts: readonly Alert[]): string =>
  table(
    ["SEVERITY", "KIND", "STATE", "SINCE", "VALUE", "ABOVE", "SANDBOX", "MESSAGE"],
    alerts.map(
      ({ severity, kind, state, firedAt, clearedAt, value, threshold, unit, sandboxId, message }) => [
        severity,
        kind,
        state,
        `${age(clearedAt ?? firedAt)} ago`,
        figure(value, unit),
        figure(threshold, unit),
        sandboxId ?? "-",
        message,
      ],
    ),
  );
