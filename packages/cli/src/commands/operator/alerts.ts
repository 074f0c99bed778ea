import type { AlertList, Delivery, DeliveryState } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { type Context, everything } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { alertTable } from "../../output/alert-words.ts";
import { print } from "../../output/streams.ts";
import { age, ahead, asJson, table } from "../../output/table.ts";

export function registerAlerts(program: Command, context: Context): void {
  const alerts = program
    .command("alerts")
    .summary("list active alerts")
    .option("--all", "include alerts that cleared recently")
    .option("--json", "print the list as JSON")
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
      print(json ? asJson(found) : textOf(found));
    });
  registerDeliveries(alerts, context);
  registerRetry(alerts, context);
}

function textOf({ items, evaluatedAt }: AlertList): string {
  if (items.length > 0) return alertTable(items);
  return evaluatedAt === null ? "Alerts have not been evaluated yet.\n" : "No alert is firing.\n";
}

function registerDeliveries(alerts: Command, context: Context): void {
  alerts
    .command("deliveries")
    .summary("list sent and pending webhook deliveries")
    .addOption(
      new Option("--state <state>", "only deliveries in this state").choices([
        "pending",
        "delivered",
        "dead",
      ]),
    )
    .option("--json", "print the list as JSON")
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast alerts deliveries\n  holdfast alerts deliveries --state dead",
    )
    .action(async ({ state, json }: { state?: DeliveryState; json?: boolean }) => {
      const { signal } = context.interruption;
      const { alerts: api } = context.client();
      const found = await everything((page) => api.deliveries({ state, signal, ...page }));
      print(json ? asJson(found) : listing(found));
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
    .argument("<deliveries...>", "delivery ids")
    .description("Resends dead deliveries, with a fresh retry schedule, and prints each id.")
    .addHelpText("after", "\nExamples:\n  holdfast alerts retry dlv_3f9a")
    .action((ids: string[]) =>
      forEachOf(context, ids, async (id) => {
        const delivery = await context.client().alerts.retry(id, { signal: context.interruption.signal });
        print(`${delivery.id}\n`);
      }),
    );
}
