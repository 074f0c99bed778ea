import type {
  AlertId,
  AttemptId,
  CheckpointId,
  DeliveryId,
  DriveId,
  ExecId,
  Image,
  Numbers,
  PreviewId,
  ProcessId,
  SandboxId,
  TokenId,
} from "@holdfast/contract";
import { clockOf, createEngine, type EngineApi, type Ids, type Images, type Log } from "@holdfast/engine";
import { SimulatedDriver } from "./driver.ts";
import { drivesOf } from "./drives.ts";
import type { Host } from "./host.ts";
import { journalsOf } from "./journals.ts";
import type { Process } from "./process.ts";
import type { Random } from "./random.ts";
import { type GateParts, gateOf } from "./store-gate.ts";

/** Ids in the order they are asked for, so that the same schedule gives the same ids. */
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

const host: Image = {
  name: "host",
  kind: "host",
  fingerprint: "f",
  createdAt: new Date(0).toISOString(),
  sizeBytes: 0,
  files: 0,
};

const images: Images = {
  list: async () => [host],
  get: async (name) => (name === host.name ? host : null),
  import: async () => host,
  remove: async () => undefined,
};

/** The real engine, with everything that it knows of the world replaced. */
export function engineOf(
  parts: GateParts & { host: Host; ids: Ids; numbers: Numbers; process: Process },
): EngineApi {
  const { host, ids, numbers, process, time, database, note } = parts;
  const clock = clockOf({
    now: time.now,
    after: (ms, then) => (process.asks() ? time.after(ms, then, process) : () => undefined),
  });
  const driver = new SimulatedDriver(host, process, numbers);
  return createEngine(
    {
      installation: database.store.installation,
      clock,
      ids,
      log: logTo(note),
      store: gateOf(parts),
      driver,
      drives: drivesOf(host, process),
      images,
      journals: journalsOf(host, process),
      notifier: null,
    },
    numbers,
  );
}

function logTo(note: GateParts["note"]): Log {
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

/** Without what is measured or made up anew at every run. */
const plain = ({ checks: _checks, ...fields }: Record<string, unknown>): Record<string, unknown> => fields;
