import type { Alert, Delivery } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { AlertRecord, DeliveryRecord } from "../ports/records.ts";

/** An alert as the API returns it and as deliveries send it. */
export const viewAlert = (record: AlertRecord): Alert => ({
  ...record,
  state: record.clearedAt === null ? "firing" : "cleared",
  firedAt: iso(record.firedAt),
  clearedAt: iso(record.clearedAt),
});

export const viewDelivery = (record: DeliveryRecord): Delivery => ({
  ...record,
  alert: viewAlert(record.alert),
  createdAt: iso(record.createdAt),
  nextAttemptAt: iso(record.nextAttemptAt),
  deliveredAt: iso(record.deliveredAt),
});
