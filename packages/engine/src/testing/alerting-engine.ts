import type { Numbers } from "@holdfast/contract";
import type { EngineApi } from "../ports/api.ts";
import type { AlertMessage, Notifier } from "../ports/index.ts";
import { eventually, testEngine } from "./test-engine.ts";

/** Settings with which alerts fire quickly. */
export const ALERT_SOON = {
  alertEveryMs: 20,
  alertForMs: 40,
  alertClearForMs: 40,
  deliveryMs: 500,
  deliveryBackoffMs: [10, 20],
  healAfterMs: 1e9,
} satisfies Partial<Numbers>;

/** A notifier that collects deliveries and can be made to fail. */
export class Receiver implements Notifier {
  /** All attempts, in order. */
  readonly tries: AlertMessage[] = [];
  readonly taken: AlertMessage[] = [];
  fails: (message: AlertMessage, signal: AbortSignal) => Promise<void> | undefined = () => undefined;

  async deliver(message: AlertMessage, signal: AbortSignal): Promise<void> {
    this.tries.push(message);
    await this.fails(message, signal);
    this.taken.push(message);
  }

  /** Returns the accepted deliveries of one alert. */
  about(key: string): string[] {
    return this.taken.filter(({ alert }) => alert.key === key).map(({ alert }) => alert.state);
  }
}

export async function alarmed(numbers: Partial<Numbers> = {}, path?: string) {
  const receiver = new Receiver();
  const all = await testEngine({ ...ALERT_SOON, ...numbers }, path, { notifier: receiver });
  return { ...all, receiver };
}

export const firing = async (engine: EngineApi): Promise<string[]> =>
  (await engine.alerts.list({ cleared: false })).items.map(({ key }) => key);

export const fires = (engine: EngineApi, key: string) =>
  eventually(async () => {
    const found = (await engine.alerts.list({ cleared: false })).items.find((alert) => alert.key === key);
    if (found === undefined) throw new Error(`${key} does not fire`);
    return found;
  });

export const clears = (engine: EngineApi, key: string) =>
  eventually(async () => {
    if ((await firing(engine)).includes(key)) throw new Error(`${key} still fires`);
  });

export const deliveriesOf = async (engine: EngineApi, key: string) =>
  (await engine.alerts.deliveries({ limit: 1_000 })).items
    .filter(({ alert }) => alert.key === key)
    .map(({ id, state, attempts, lastError, alert }) => ({
      id,
      state,
      attempts,
      lastError,
      tells: alert.state,
    }))
    .reverse();
