import {
  type CreateCheckpoint,
  type CreateSandbox,
  type Exec,
  type ExecId,
  isTerminal,
  type StartExec,
} from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { argvOf } from "../schedule/command.ts";
import type { Act } from "../schedule/schedule.ts";
import {
  AFTERMATH_MS,
  gateMs,
  madeMs,
  mountMs,
  pauseMs,
  restartMs,
  resumeMs,
  saveMs,
  standbyMs,
  usableMs,
} from "./bounds.ts";
import { DriveRequests } from "./drive-requests.ts";
import { ProcessRequests } from "./process-requests.ts";
import { type ClientRequest, clientRequest, type Parts } from "./request.ts";

/** Maximum duration of an operation on all sandboxes, if every part of it is slow. */
const THOROUGH_MS = 300_000;
/**
 * Waiting time above which a request counts as one that waits for the exec's end. Such a request is sent with the
 * option `awaited`.
 */
const AWAITED_MS = 1_000;

type Create = Extract<Act, { do: "create" }>;
type Start = Extract<Act, { do: "exec" }>;

/**
 * Creates the requests of callers. Callers know only the ids that they received in answers, and the names that they
 * chose.
 */
export class ClientRequests {
  readonly #parts: Parts;
  readonly #boxes = new Map<number, { act: Create; id: string | null }>();
  /**
   * Execs by their number in the schedule. `act` is null for execs that were already running when their fork was
   * created.
   */
  readonly #execs = new Map<number, { act: Start | null; id: string | null }>();
  /** Saved checkpoints by their number in the schedule, each with its sandbox. */
  readonly #saves = new Map<number, { ref: string; name: string | null; id: string | null }>();
  readonly #drives: DriveRequests;
  readonly #processes: ProcessRequests;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#drives = new DriveRequests(parts, (box) => this.#refOf(box));
    this.#processes = new ProcessRequests(parts);
  }

  /** Returns the request for an act; null if the callers do not know the id of the object that the act is about. */
  of(act: Exclude<Act, { do: "fault" | "leave" }>): ClientRequest | null {
    switch (act.do) {
      case "create":
        this.#boxes.set(act.box, { act, id: null });
        return this.#create(act);
      case "save":
        return this.#save(act);
      case "unsave":
        return this.#unsave(act.save);
      case "exec":
        this.#execs.set(act.exec, { act, id: act.hasId ? `x${act.exec}` : null });
        return this.#start(act);
      case "process":
      case "stop-process":
      case "restart-process":
      case "processes": {
        const ref = this.#refOf(act.box);
        return ref === null ? null : this.#processes.of(act, ref);
      }
      case "again":
        return this.#again(act.of);
      case "drive":
      case "undrive":
      case "show-drive":
      case "mount":
      case "unmount":
      case "mounts":
      case "write-at":
        return this.#drives.of(act);
      case "list":
      case "stats":
      case "events":
      case "drives":
        return this.#survey(act.do);
      case "audit":
        return clientRequest(["audit"], THOROUGH_MS, (engine) => engine.audit());
      case "cleanup":
        return this.#cleanup(act);
      case "delete":
      case "verify":
      case "show":
      case "write":
      case "read":
      case "execs":
      case "saves":
      case "pause":
      case "resume":
      case "standby":
      case "restart":
      case "wake": {
        const ref = this.#refOf(act.box);
        return ref === null ? null : this.#onBox(act, ref);
      }
      default: {
        const id = this.#execs.get(act.exec)?.id ?? null;
        return id === null ? null : this.#onExec(act, id);
      }
    }
  }

  #again(of: number): ClientRequest | null {
    const box = this.#boxes.get(of);
    if (box !== undefined) return this.#create(box.act);
    const exec = this.#execs.get(of);
    return exec?.act ? this.#start(exec.act) : null;
  }

  /** Returns the sandbox's id if callers know it, else its name, else null. */
  #refOf(box: number): string | null {
    const { id, act } = this.#boxes.get(box) ?? {};
    return id ?? (act?.name == null ? null : `name-${act.name}`);
  }

  /** Maximum time until the sandbox serves: launching or waking it, then proving that it serves. */
  #gateMs(ref: string | null): number {
    const { numbers, recordOf } = this.#parts;
    return gateMs(ref === null ? undefined : recordOf(ref), numbers);
  }

  /** Maximum duration of a wake. It includes the time of a launch, because a wake may fall back to one. */
  get #wakeMs(): number {
    const { wakeDeadlineMs, proofDeadlineMs } = this.#parts.numbers;
    return wakeDeadlineMs + proofDeadlineMs + madeMs(this.#parts.numbers);
  }

  /** Maximum duration of reading output: first over a link that dies during the read, then from disk. */
  get #readMs(): number {
    return 2 * this.#parts.numbers.linkDeadMs + AFTERMATH_MS;
  }

  /** Returns the create request; null if callers do not know the checkpoint to fork. */
  #create(act: Create): ClientRequest | null {
    const { numbers, report, note } = this.#parts;
    const from = act.from == null ? null : this.#savedAs(act.from);
    if (act.from != null && from === null) return null;
    const key = act.key === null ? null : `key-${act.key}`;
    const mounts = this.#drives.inputs(act.mounts ?? []);
    const input: CreateSandbox = {
      ...(act.name === null ? {} : { name: `name-${act.name}` }),
      ifExists: act.ifExists,
      ...(act.image === "host" ? {} : { image: act.image }),
      ...(from === null ? {} : { fromCheckpoint: from }),
      ...(mounts.length === 0 ? {} : { mounts }),
      lifecycle: {
        ...(act.coldStart ? { onMemoryLoss: "cold-start" } : {}),
        ...(act.ttlMs === null ? {} : { ttlMs: act.ttlMs }),
        ...(act.disposable ? { disposable: true } : {}),
        ...(act.idleStandbyMs == null ? {} : { idleStandbyMs: act.idleStandbyMs }),
      },
    };
    const owner = act.owner === null ? null : `owner-${act.owner}`;
    const options = { wait: act.wait, owner, ...(key === null ? {} : { idempotencyKey: key }) };
    return clientRequest(
      [`create ${act.box}${input.name === undefined ? "" : ` as ${input.name}`}`],
      // The launch is preceded by measuring and cleaning the host. If the launch fails, the caller gets the answer only
      // after the clean-up. So these times are added.
      numbers.keeperCallMs +
        (from === null ? 0 : numbers.keeperCallMs + numbers.standbyDeadlineMs) +
        2 * AFTERMATH_MS +
        // If the sandbox already exists, the requested mounts are added to it one after another, so the time of each
        // mount is added.
        mounts.length * (usableMs(numbers) + mountMs(undefined, numbers)) +
        2 * numbers.deleteWaitMs +
        this.#gateMs(null) +
        AFTERMATH_MS,
      ({ sandboxes }, signal) => sandboxes.create(input, { ...options, signal }),
      ({ sandbox, existed }) => {
        const box = this.#boxes.get(act.box);
        if (box !== undefined) box.id = sandbox.id;
        const [exec] = Object.keys(sandbox.forkedFrom?.execs ?? {});
        if (from !== null && exec !== undefined) this.#execs.set(act.box, { act: null, id: exec });
        note(() => `create ${act.box} is ${sandbox.id.slice(-3)} ${sandbox.status}`);
        const request = JSON.stringify(input);
        report({ type: "created", sandbox, request, key, existed, waited: act.wait });
        report({ type: "reported-sandbox", sandbox });
      },
    );
  }

  #save({ save, box, name }: Extract<Act, { do: "save" }>): ClientRequest | null {
    const ref = this.#refOf(box);
    if (ref === null) return null;
    const { numbers, note, recordOf } = this.#parts;
    const input: CreateCheckpoint = name === null ? {} : { name: `saved-${name}` };
    this.#saves.set(save, { ref, name: input.name ?? null, id: null });
    return clientRequest(
      [`save ${save} of ${ref.slice(-6)}`, ref],
      saveMs(recordOf(ref), numbers),
      ({ checkpoints }, signal) => checkpoints.create(ref, input, signal),
      ({ id, sandboxId }) => {
        note(() => `save ${save} is ${id.slice(-3)}`);
        this.#saves.set(save, { ref: sandboxId, name: input.name ?? null, id });
      },
    );
  }

  /**
   * Returns a checkpoint's id: that of checkpoint number `save` if callers know it, else that of another one that they
   * know; null if they know none.
   */
  #savedAs(save: number): string | null {
    const known = [...this.#saves.values()].flatMap(({ id }) => id ?? []);
    return this.#saves.get(save)?.id ?? known.at(-1) ?? null;
  }

  #unsave(save: number): ClientRequest | null {
    const known = this.#saves.get(save);
    const which = known?.id ?? known?.name;
    if (known === undefined || which == null) return null;
    const { numbers, recordOf, report } = this.#parts;
    const { ref } = known;
    return clientRequest(
      [`unsave ${which.slice(-6)} of ${ref.slice(-6)}`, ref],
      saveMs(recordOf(ref), numbers),
      ({ checkpoints }, signal) => {
        report({ type: "unwanted", id: which });
        return checkpoints.remove(ref, which, signal);
      },
    );
  }

  #start(act: Start): ClientRequest | null {
    const ref = this.#refOf(act.box);
    if (ref === null) return null;
    const { waitMs } = act;
    const askedAt = this.#parts.time.elapsed;
    const input: StartExec = {
      argv: argvOf(act.command),
      ...(act.hasId ? { id: `x${act.exec}` } : {}),
      ...(act.timeoutMs === null ? {} : { timeoutMs: act.timeoutMs }),
      ...(act.stdin === null ? {} : { stdin: act.stdin }),
      ...(act.openStdin ? { openStdin: true } : {}),
      ...(act.keepAwake === false ? { keepAwake: false } : {}),
      ...onWakeOf(act.onWake),
    };
    const awaited = waitMs !== null && waitMs > AWAITED_MS;
    const options = { awaited, ...(act.key === null ? {} : { idempotencyKey: `key-${act.key}` }) };
    return clientRequest(
      [`exec ${act.exec} in ${ref.slice(-6)}`, ref],
      this.#gateMs(ref) + this.#parts.numbers.execStartDeadlineMs + (waitMs ?? 0) + this.#readMs,
      async ({ execs }, signal) => {
        const { exec } = await execs.start(ref, input, { ...options, signal });
        const known = this.#execs.get(act.exec);
        if (known !== undefined) known.id = exec.id;
        if (!awaited) this.#reported(exec, askedAt);
        return waitMs === null ? exec : execs.wait(exec.id, { waitMs, signal });
      },
      (exec) => this.#reported(exec, askedAt),
    );
  }

  /**
   * Passes an exec to the invariants as it was reported in an answer. `askedAt` is the time at which the request was
   * sent.
   */
  #reported(exec: Exec, askedAt: number): void {
    const { note, report } = this.#parts;
    note(() => `${exec.id} is ${exec.status}${exec.exitCode === null ? "" : ` ${exec.exitCode}`}`);
    report({ type: "reported-exec", exec, askedAt });
  }

  #onExec(
    act: Extract<Act, { do: "wait" | "cancel" | "signal" | "show-exec" | "output" | "type"; exec: number }>,
    id: string,
  ): ClientRequest {
    const { linkWaitMs, keeperCallMs } = this.#parts.numbers;
    const askedAt = this.#parts.time.elapsed;
    const onAnswer = (exec: Exec) => this.#reported(exec, askedAt);
    const reachMs = 2 * linkWaitMs + keeperCallMs + this.#wakeMs;
    switch (act.do) {
      case "wait": {
        const { waitMs } = act;
        const bound = waitMs + this.#readMs;
        return clientRequest(
          [`wait for ${id}`, id],
          bound,
          (to, signal) => to.execs.wait(id, { waitMs, signal }),
          onAnswer,
        );
      }
      case "cancel":
        return clientRequest(
          [`cancel ${id}`, id],
          reachMs + keeperCallMs,
          (to, signal) => {
            this.#parts.report({ type: "unwanted", id });
            return to.execs.cancel(id, signal);
          },
          onAnswer,
        );
      case "signal":
        return clientRequest(
          [`signal ${id}`, id],
          reachMs,
          (to, signal) => to.execs.signal(id, "TERM", signal),
          onAnswer,
        );
      case "show-exec":
        return clientRequest([`show ${id}`, id], 0, (to) => to.execs.get(id), onAnswer);
      case "output":
        return this.#output(id, act.follow);
      case "type":
        return clientRequest(
          [`type ${act.text} to ${id}`, id],
          reachMs,
          (to, signal) => {
            const data = Buffer.from(act.text);
            return to.execs.writeStdin(id, { offset: null, data, end: act.end }, signal);
          },
          () => this.#parts.report({ type: "typed", id: id as ExecId, text: act.text }),
        );
    }
  }

  /**
   * Reads an exec's output. A request that follows the output lasts as long as the exec, so it has no maximum duration.
   */
  #output(id: string, follow: boolean): ClientRequest {
    const askedAt = this.#parts.time.elapsed;
    return clientRequest(
      [`output of ${id}`, id],
      follow ? Number.POSITIVE_INFINITY : this.#readMs,
      async ({ execs }, signal) => {
        let text = "";
        let last: Exec | null = null;
        for await (const record of execs.output(id, { follow, signal })) {
          if ("data" in record) text += Buffer.from(record.data).toString();
          if ("exec" in record) last = record.exec;
        }
        return { last, text };
      },
      ({ last, text }) => {
        if (last !== null && isTerminal(last.status)) this.#reported({ ...last, stdout: text }, askedAt);
      },
    );
  }

  #onBox(act: Extract<Act, { box: number; do: BoxDeed }>, ref: string): ClientRequest {
    const { numbers, report, time } = this.#parts;
    const askedAt = time.elapsed;
    const what: [string, string] = [`${act.do} ${ref.slice(-6)}`, ref];
    switch (act.do) {
      case "delete":
        return this.delete(ref, act.waitMs);
      case "verify":
        return clientRequest(what, this.#gateMs(ref) + numbers.proofDeadlineMs, (to, signal) =>
          to.sandboxes.verify(ref, signal),
        );
      case "pause":
      case "resume":
      case "standby":
      case "restart":
      case "wake":
        return this.#sleep(act.do, ref);
      case "read":
        // The maximum duration below is long enough for each of three cases: the file is read from disk; it is read
        // after a wake; the read from disk fails, and then the file is read after a wake.
        return clientRequest(
          what,
          this.#gateMs(ref) + 2 * numbers.keeperCallMs + numbers.linkDeadMs,
          (to, signal) => read(to, ref, act, signal),
        );
      case "show":
        return clientRequest(
          what,
          0,
          (to) => to.sandboxes.get(ref),
          (sandbox) => report({ type: "reported-sandbox", sandbox }),
        );
      case "write":
        return clientRequest(
          what,
          this.#gateMs(ref) + numbers.keeperCallMs + numbers.linkDeadMs,
          (to, signal) => to.files.write(ref, "/tmp/a", once("some text"), { parents: true }, signal),
        );
      case "saves":
        return clientRequest(what, 0, (to) => to.checkpoints.list(ref));
      case "execs":
        return clientRequest(
          what,
          0,
          (to) => to.execs.list(ref, { limit: 10 }),
          ({ items }) => {
            for (const exec of items) this.#reported(exec, askedAt);
          },
        );
    }
  }

  #sleep(what: "pause" | "resume" | "standby" | "wake" | "restart", ref: string): ClientRequest {
    const { numbers, report, note, recordOf } = this.#parts;
    const record = recordOf(ref);
    const bounds = {
      pause: pauseMs(record, numbers),
      resume: resumeMs(record, numbers),
      standby: standbyMs(numbers),
      wake: gateMs(record, numbers),
      restart: restartMs(record, numbers),
    };
    return clientRequest(
      [`${what} ${ref.slice(-6)}`, ref],
      bounds[what],
      ({ sandboxes }, signal) => sandboxes[what](ref, signal),
      (sandbox) => {
        note(() => `${what} ${ref.slice(-6)}: ${sandbox.status}`);
        report({ type: "reported-sandbox", sandbox });
        if (what === "pause") report({ type: "paused", sandbox });
      },
    );
  }

  /** Creates a request to resume or wake a sandbox by id. */
  resumeOrWake(id: string, what: "resume" | "wake"): ClientRequest {
    return this.#sleep(what, id);
  }

  /** Creates a request to delete a drive by id. */
  removeDrive(id: string): ClientRequest {
    return this.#drives.remove(id, false);
  }

  delete(ref: string, waitMs: number): ClientRequest {
    const { report, note } = this.#parts;
    const what = `delete ${ref.slice(-6)}`;
    return clientRequest(
      [what, ref],
      // Deleting a sandbox with an unreadable record responds only after the sandbox was removed, so the removal's time
      // is added.
      waitMs + 2 * this.#parts.numbers.stopAttemptMs,
      ({ sandboxes }, signal) => {
        report({ type: "unwanted", id: ref });
        return sandboxes.remove(ref, { graceMs: 0, waitMs, signal });
      },
      (sandbox) => {
        note(() => `${what}: ${sandbox.status}`);
        report({ type: "reported-sandbox", sandbox });
      },
    );
  }

  #cleanup({ dryRun, emergency }: Extract<Act, { do: "cleanup" }>): ClientRequest {
    return clientRequest(["cleanup"], THOROUGH_MS, (engine) => {
      if (emergency && !dryRun) this.#parts.report({ type: "emergency" });
      return engine.cleanup({ dryRun, emergency });
    });
  }

  #survey(what: "list" | "stats" | "events" | "drives"): ClientRequest {
    const { report } = this.#parts;
    if (what === "drives")
      return clientRequest(
        [what],
        0,
        ({ drives }) => drives.list({ limit: 100 }),
        ({ items }) => {
          for (const drive of items) report({ type: "reported-drive", drive });
        },
      );
    if (what === "events") return clientRequest([what], 0, (engine) => engine.events({ limit: 20 }));
    if (what === "stats") return clientRequest([what], 0, (engine) => engine.stats());
    return clientRequest(
      [what],
      0,
      ({ sandboxes }) => sandboxes.list({ limit: 100 }),
      ({ items }) => {
        for (const sandbox of items) report({ type: "reported-sandbox", sandbox });
      },
    );
  }
}

type BoxDeed =
  | "delete"
  | "verify"
  | "show"
  | "write"
  | "read"
  | "execs"
  | "saves"
  | "pause"
  | "resume"
  | "standby"
  | "restart"
  | "wake";

function onWakeOf(how: "argv" | "signal" | null | undefined): Pick<StartExec, "onWake"> {
  if (how === "argv") return { onWake: { argv: argvOf({ kind: "run", ms: 5, exitCode: 0, prints: 0 }) } };
  return how === "signal" ? { onWake: { signal: "SIGUSR1" } } : {};
}

async function read(
  { files }: EngineApi,
  ref: string,
  { path, wake }: { path: string; wake: boolean },
  signal: AbortSignal,
): Promise<void> {
  const { body } = await files.read(ref, path, { offset: 0, length: null, wake }, signal);
  for await (const _part of body);
}

async function* once(text: string): AsyncIterable<Uint8Array> {
  yield Buffer.from(text);
}
