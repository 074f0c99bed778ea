import type {
  AlertId,
  AttemptId,
  CheckpointId,
  DeliveryId,
  DriveId,
  ExecId,
  Numbers,
  PreviewId,
  ProcessId,
  SandboxId,
  TokenId,
} from "@holdfast/contract";
import { clockOf, createEngine, type EngineApi, type Ids, type Log } from "@holdfast/engine";
import type { Random } from "../schedule/random.ts";
import { SimulatedDriver } from "./driver.ts";
import type { Host } from "./host.ts";
import type { Process } from "./process.ts";
import { type ServerStoreParts, serverStore } from "./server-store.ts";

/** Generates ids by counting, so that the same schedule always creates the same ids. */
export class SimulatedIds implements Ids {
  readonly #random: Random;
  #count = 0;

  constructor(random: Random) {
    this.#random = random;
  }

  #next(prefix: string, length: number): string {
    this.#count += 1;
    return prefix + this.#count.toString(36).padStart(length, "0");
  }

  readonly sandbox = () => this.#next("sbx_", 16) as SandboxId;
  readonly exec = () => this.#next("exe_", 20) as ExecId;
  readonly attempt = () => this.#next("att_", 12) as AttemptId;
  readonly checkpoint = () => this.#next("ckp_", 16) as CheckpointId;
  readonly drive = () => this.#next("drv_", 16) as DriveId;
  readonly alert = () => this.#next("alr_", 16) as AlertId;
  readonly delivery = () => this.#next("dlv_", 16) as DeliveryId;
  readonly preview = () => this.#next("prv_", 16) as PreviewId;
  readonly token = () => this.#next("", 16) as TokenId;
  readonly process = () => this.#next("prc_", 16) as ProcessId;
  readonly name = () => this.#next("made-up-", 3);
  readonly random = () => this.#random.unit();
}

/** Creates the real engine with a simulated environment. */
export function engineOf(
  parts: ServerStoreParts & { host: Host; ids: Ids; numbers: Numbers; process: Process },
): EngineApi {
  const { host, ids, numbers, process, time, database, note } = parts;
  const clock = clockOf({
    now: time.now,
    after: (ms, then) => (process.mayCall() ? time.after(ms, then, process) : () => undefined),
  });
  const driver = new SimulatedDriver(host, process, numbers);
  return createEngine(
    {
      installation: database.store.installation,
      clock,
      ids,
      log: logTo(note),
      store: serverStore(parts),
      driver,
      notifier: null,
    },
    numbers,
  );
}

function logTo(note: ServerStoreParts["note"]): Log {
  const at = (level: string) => (fields: Record<string, unknown>, message: string) =>
    note(() => `  ${level} ${message} ${JSON.stringify(plain(fields))}`);
  const log: Log = {
    debug: () => undefined,
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    child: () => log,
  };
  return log;
}

/** Removes the log fields whose values differ from run to run. */
const plain = ({ checks: _checks, ...fields }: Record<string, unknown>): Record<string, unknown> => fields;
