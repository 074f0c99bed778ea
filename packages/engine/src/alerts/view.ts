import type { Alert, Delivery } from "@holdfast/contract";
import type { AlertRecord, DeliveryRecord } from "../ports/records.ts";

const iso = (time: number): string => new Date(time).toISOString();
const isoOrNull = (time: number | null): string | null => (time === null ? null : iso(time));

/** An alert as the API returns it and as deliveries send it. */
export const viewAlert = (record: AlertRecord): Alert => ({
  ...record,
  state: record.clearedAt === null ? "firing" : "cleared",
  firedAt: iso(record.firedAt),
  clearedAt: isoOrNull(record.clearedAt),
});

export const viewDelivery = (record: DeliveryRecord): Delivery => ({
  ...record,
  alert: viewAlert(record.alert),
  createdAt: iso(record.createdAt),
  nextAttemptAt: isoOrNull(record.nextAttemptAt),
  deliveredAt: isoOrNull(record.deliveredAt),
});
