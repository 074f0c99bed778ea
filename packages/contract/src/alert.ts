import { type Static, Type } from "typebox";
import { List, Nullable, OneOf, Timestamp } from "./schema.ts";

export const ALERT_KINDS = [
  "timeout_rate",
  "too_many_active",
  "active_escalation",
  "running_long",
  "stuck",
  "repeated_timeouts",
  "leak",
  "cleanup_not_running",
  "cleanup_failing",
  "audit_overdue",
  "audit_incomplete",
  "observation_overdue",
  "sandbox_failed",
  "lease_exhausted",
  "lease_quarantined",
  "capacity",
  "capacity_unmeasured",
  "launches_suspended",
  "delivery_failing",
] as const;
export const AlertKind = OneOf(ALERT_KINDS);
export type AlertKind = Static<typeof AlertKind>;

export const SEVERITIES = ["info", "warning", "critical"] as const;
export const Severity = OneOf(SEVERITIES);
export type Severity = Static<typeof Severity>;

/** The unit of an alert's value and thresholds. */
export const ALERT_UNITS = ["percent", "ms", "count"] as const;
export const AlertUnit = OneOf(ALERT_UNITS);
export type AlertUnit = Static<typeof AlertUnit>;

export const Alert = Type.Object(
  {
    id: Type.String({
      description: "identifies this firing; an alert that clears and fires again gets a new id",
    }),
    /** The alert's kind. If alerts of the kind can have several subjects, a colon and the subject follow. */
    key: Type.String({
      description: "identifies the problem across firings: `stuck:sbx_…`, `capacity:disk`, `timeout_rate`",
    }),
    kind: AlertKind,
    severity: Severity,
    state: OneOf(["firing", "cleared"]),
    sandboxId: Nullable(Type.String()),
    message: Type.String(),
    unit: AlertUnit,
    value: Type.Number({ description: "last reading" }),
    threshold: Type.Number({ description: "the alert fires above this value" }),
    clearBelow: Type.Number({ description: "the alert clears at or below this value" }),
    target: Nullable(Type.Number({ description: "desired value in normal operation" })),
    firedAt: Timestamp,
    clearedAt: Nullable(Timestamp),
  },
  { $id: "Alert", title: "Alert" },
);
export type Alert = Static<typeof Alert>;

export const AlertList = Type.Object(
  { items: Type.Array(Alert), evaluatedAt: Nullable(Timestamp) },
  { $id: "AlertList", title: "AlertList" },
);
export type AlertList = Static<typeof AlertList>;

export const DELIVERY_STATES = ["pending", "delivered", "dead"] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

export const Delivery = Type.Object(
  {
    id: Type.String(),
    state: OneOf(DELIVERY_STATES, {
      description: "dead: given up after the last attempt; kept until it is retried or its retention ends",
    }),
    alert: Alert,
    attempts: Type.Integer({ minimum: 0 }),
    createdAt: Timestamp,
    nextAttemptAt: Nullable(Timestamp),
    deliveredAt: Nullable(Timestamp),
    lastError: Nullable(Type.String()),
  },
  { $id: "Delivery", title: "Delivery" },
);
export type Delivery = Static<typeof Delivery>;

export const DeliveryList = List(Delivery, "DeliveryList");
export type DeliveryList = Static<typeof DeliveryList>;
