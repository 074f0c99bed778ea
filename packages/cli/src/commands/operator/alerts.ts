import type { AlertList, Delivery, DeliveryState } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { alertTable } from "../alert-words.ts";
import { type Context, everything } from "../context.ts";
import { forEachOf } from "../each.ts";
import { age, ahead, asJson, table } from "../table.ts";

export function registerAlerts(program: Command, context: Context): void {
  const alerts = program
    .command("alerts")
    .summary("show what is wrong with the server, or with a sandbox for too long")
    .option("--all", "those that have cleared lately, too")
    .option("--json", "print them as JSON")
    .addHelpText(
      "after",
      `
Examples:
  holdfast alerts
  holdfast alerts --all --json
  holdfast alerts deliveries --state dead
  holdfast alerts retry dlv_3f9a`,
    )
    .action(async ({ all, json }: { all?: boolean; json?: boolean }) => {
      const { signal } = context.interruption;
      const found = await context.client().alerts.list({ cleared: all, signal });
      process.stdout.write(json ? asJson(found) : textOf(found));
    });
  registerDeliveries(alerts, context);
  registerRetry(alerts, context);
}

function textOf({ items, evaluatedAt }: AlertList): string {
  if (items.length > 0) return alertTable(items);
  return evaluatedAt === null ? "Alerts were not evaluated yet.\n" : "No alert is firing.\n";
}

function registerDeliveries(alerts: Command, context: Context): void {
  alerts
    .command("deliveries")
    .summary("list what was sent to the webhook, or is to be")
    .addOption(new Option("--state <state>", "only these").choices(["pending", "delivered", "dead"]))
    .option("--json", "print them as JSON")
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast alerts deliveries\n  holdfast alerts deliveries --state dead",
    )
    .action(async ({ state, json }: { state?: DeliveryState; json?: boolean }) => {
      const { signal } = context.interruption;
      const { alerts: api } = context.client();
      const found = await everything((page) => api.deliveries({ state, signal, ...page }));
      process.stdout.write(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Delivery[]): string =>
  table(
    ["ID", "STATE", "ALERT", "AGE", "TRIES", "NEXT", "LAST ERROR"],
    found.map(({ id, state, alert, createdAt, attempts, nextAttemptAt, lastError }) => [
      id,
      state,
      `${alert.key} ${alert.state}`,
      age(createdAt),
      String(attempts),
      nextAttemptAt === null ? "-" : ahead(nextAttemptAt),
      lastError ?? "",
    ]),
  );

function registerRetry(alerts: Command, context: Context): void {
  alerts
    .command("retry")
    .summary("send dead deliveries again")
    .argument("<deliveries...>", "ids of deliveries")
    .description("Tries deliveries again that were given up, from the first wait on, and prints each id.")
    .addHelpText("after", "\nExamples:\n  holdfast alerts retry dlv_3f9a")
    .action((ids: string[]) =>
      forEachOf(context, ids, async (id) => {
        const delivery = await context.client().alerts.retry(id, { signal: context.interruption.signal });
        process.stdout.write(`${delivery.id}\n`);
      }),
    );
}
