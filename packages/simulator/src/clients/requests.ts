import {
  type CreateCheckpoint,
  type CreateSandbox,
  type Exec,
  type ExecId,
  isTerminal,
  type Numbers,
  type StartExec,
} from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
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
import { argvOf } from "./command.ts";
import { DriveQuestions } from "./drive-questions.ts";
import type { Fact } from "./facts.ts";
import { ProcessQuestions } from "./process-questions.ts";
import type { Act } from "./schedule.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** Something that a caller asks the engine, how long the answer may take, and what is made of it. */
export interface Question {
  readonly what: string;
  /** The sandbox or exec that it is about, where there is one already. */
  readonly ref: string | null;
  readonly boundMs: number;
  /** Resolves with what to do with the answer. */
  readonly ask: (engine: EngineApi, signal: AbortSignal) => Promise<() => void>;
}

/** Going through everything, with each thing as slow as it can be. */
const THOROUGH_MS = 300_000;
/** A caller that is told nothing for so long counts as waiting for the end. */
const AWAITED_MS = 1_000;

export interface Parts {
  time: VirtualTime;
  numbers: Numbers;
  tell(fact: Fact): void;
  note(line: () => string): void;
  /** What is stored of the sandbox that an id or a name means. */
  recordOf(ref: string): SandboxRecord | undefined;
}

type Create = Extract<Act, { do: "create" }>;
type Start = Extract<Act, { do: "exec" }>;

export function question<Answer>(
  [what, ref]: [what: string, ref?: string],
  boundMs: number,
  ask: (engine: EngineApi, signal: AbortSignal) => Promise<Answer>,
  heard: (answer: Answer) => void = () => undefined,
): Question {
  return {
    what,
    ref: ref ?? null,
    boundMs,
    ask: async (engine, signal) => {
      const answer = await ask(engine, signal);
      return () => heard(answer);
    },
  };
}

/** What callers ask for. They know only what they were told: ids from answers, and names that they chose. */
export class Questions {
  readonly #parts: Parts;
  readonly #boxes = new Map<number, { act: Create; id: string | null }>();
  /** Those that a fork began with have no act of their own. */
  readonly #execs = new Map<number, { act: Start | null; id: string | null }>();
  /** With the sandbox that each was asked of. */
  readonly #saves = new Map<number, { ref: string; name: string | null; id: string | null }>();
  readonly #drives: DriveQuestions;
  readonly #processes: ProcessQuestions;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#drives = new DriveQuestions(parts, (box) => this.#refOf(box));
    this.#processes = new ProcessQuestions(parts);
  }

  /** Null where what it is about was never heard of. */
  of(act: Exclude<Act, { do: "fault" | "leave" }>): Question | null {
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
        return question(["audit"], THOROUGH_MS, (engine) => engine.audit());
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

  #again(of: number): Question | null {
    const box = this.#boxes.get(of);
    if (box !== undefined) return this.#create(box.act);
    const exec = this.#execs.get(of);
    return exec?.act ? this.#start(exec.act) : null;
  }

  /** By id where it is known, else by name, else not at all. */
  #refOf(box: number): string | null {
    const { id, act } = this.#boxes.get(box) ?? {};
    return id ?? (act?.name == null ? null : `name-${act.name}`);
  }

  /** Being made or woken, then proven. */
  #gateMs(ref: string | null): number {
    const { numbers, recordOf } = this.#parts;
    return gateMs(ref === null ? undefined : recordOf(ref), numbers);
  }

  /** Of the sandbox of an exec, wherever that is: whoever acts on one that sleeps wakes it, and a wake may end in a launch. */
  get #wakeMs(): number {
    const { wakeDeadlineMs, proofDeadlineMs } = this.#parts.numbers;
    return wakeDeadlineMs + proofDeadlineMs + madeMs(this.#parts.numbers);
  }

  /** Reading output: a link that dies, then the disk. */
  get #readMs(): number {
    return 2 * this.#parts.numbers.linkDeadMs + AFTERMATH_MS;
  }

  /** Null where the checkpoint that it is to begin with was never heard of. */
  #create(act: Create): Question | null {
    const { numbers, tell, note } = this.#parts;
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
    return question(
      [`create ${act.box}${input.name === undefined ? "" : ` as ${input.name}`}`],
      // The host is measured first, and cleaned; what failed is cleaned up before its caller hears of it.
      numbers.keeperCallMs +
        (from === null ? 0 : numbers.keeperCallMs + numbers.standbyDeadlineMs) +
        2 * AFTERMATH_MS +
        // One that is there already is to have them as well, one after another.
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
        tell({ type: "created", sandbox, request, key, existed, waited: act.wait });
        tell({ type: "told-sandbox", sandbox });
      },
    );
  }

  #save({ save, box, name }: Extract<Act, { do: "save" }>): Question | null {
    const ref = this.#refOf(box);
    if (ref === null) return null;
    const { numbers, note, recordOf } = this.#parts;
    const input: CreateCheckpoint = name === null ? {} : { name: `saved-${name}` };
    this.#saves.set(save, { ref, name: input.name ?? null, id: null });
    return question(
      [`save ${save} of ${ref.slice(-6)}`, ref],
      saveMs(recordOf(ref), numbers),
      ({ checkpoints }, signal) => checkpoints.create(ref, input, signal),
      ({ id, sandboxId }) => {
        note(() => `save ${save} is ${id.slice(-3)}`);
        this.#saves.set(save, { ref: sandboxId, name: input.name ?? null, id });
      },
    );
  }

  /** Its id, or that of another one: whoever wants a fork takes what there is. */
  #savedAs(save: number): string | null {
    const known = [...this.#saves.values()].flatMap(({ id }) => id ?? []);
    return this.#saves.get(save)?.id ?? known.at(-1) ?? null;
  }

  #unsave(save: number): Question | null {
    const known = this.#saves.get(save);
    const which = known?.id ?? known?.name;
    if (known === undefined || which == null) return null;
    const { numbers, recordOf, tell } = this.#parts;
    const { ref } = known;
    return question(
      [`unsave ${which.slice(-6)} of ${ref.slice(-6)}`, ref],
      saveMs(recordOf(ref), numbers),
      ({ checkpoints }, signal) => {
        tell({ type: "unwanted", id: which });
        return checkpoints.remove(ref, which, signal);
      },
    );
  }

  #start(act: Start): Question | null {
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
    return question(
      [`exec ${act.exec} in ${ref.slice(-6)}`, ref],
      this.#gateMs(ref) + this.#parts.numbers.execStartDeadlineMs + (waitMs ?? 0) + this.#readMs,
      async ({ execs }, signal) => {
        const { exec } = await execs.start(ref, input, { ...options, signal });
        const known = this.#execs.get(act.exec);
        if (known !== undefined) known.id = exec.id;
        if (!awaited) this.#told(exec, askedAt);
        return waitMs === null ? exec : execs.wait(exec.id, { waitMs, signal });
      },
      (exec) => this.#told(exec, askedAt),
    );
  }

  /** `askedAt`: when the question was asked that this answers. */
  #told(exec: Exec, askedAt: number): void {
    const { note, tell } = this.#parts;
    note(() => `${exec.id} is ${exec.status}${exec.exitCode === null ? "" : ` ${exec.exitCode}`}`);
    tell({ type: "told-exec", exec, askedAt });
  }

  #onExec(
    act: Extract<Act, { do: "wait" | "cancel" | "signal" | "show-exec" | "output" | "type"; exec: number }>,
    id: string,
  ): Question {
    const { linkWaitMs, keeperCallMs } = this.#parts.numbers;
    const askedAt = this.#parts.time.elapsed;
    const heard = (exec: Exec) => this.#told(exec, askedAt);
    const reachMs = 2 * linkWaitMs + keeperCallMs + this.#wakeMs;
    switch (act.do) {
      case "wait": {
        const { waitMs } = act;
        const bound = waitMs + this.#readMs;
        return question(
          [`wait for ${id}`, id],
          bound,
          (to, signal) => to.execs.wait(id, { waitMs, signal }),
          heard,
        );
      }
      case "cancel":
        return question(
          [`cancel ${id}`, id],
          reachMs + keeperCallMs,
          (to, signal) => {
            this.#parts.tell({ type: "unwanted", id });
            return to.execs.cancel(id, signal);
          },
          heard,
        );
      case "signal":
        return question(
          [`signal ${id}`, id],
          reachMs,
          (to, signal) => to.execs.signal(id, "TERM", signal),
          heard,
        );
      case "show-exec":
        return question([`show ${id}`, id], 0, (to) => to.execs.get(id), heard);
      case "output":
        return this.#output(id, act.follow);
      case "type":
        return question(
          [`type ${act.text} to ${id}`, id],
          reachMs,
          (to, signal) => {
            const data = Buffer.from(act.text);
            return to.execs.writeStdin(id, { offset: null, data, end: act.end }, signal);
          },
          () => this.#parts.tell({ type: "typed", id: id as ExecId, text: act.text }),
        );
    }
  }

  /** A stream that follows ends with its exec, so how long it may take depends on that and is not bounded here. */
  #output(id: string, follow: boolean): Question {
    const askedAt = this.#parts.time.elapsed;
    return question(
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
        if (last !== null && isTerminal(last.status)) this.#told({ ...last, stdout: text }, askedAt);
      },
    );
  }

  #onBox(act: Extract<Act, { box: number; do: BoxDeed }>, ref: string): Question {
    const { numbers, tell, time } = this.#parts;
    const askedAt = time.elapsed;
    const what: [string, string] = [`${act.do} ${ref.slice(-6)}`, ref];
    switch (act.do) {
      case "delete":
        return this.delete(ref, act.waitMs);
      case "verify":
        return question(what, this.#gateMs(ref) + numbers.proofDeadlineMs, (to, signal) =>
          to.sandboxes.verify(ref, signal),
        );
      case "pause":
      case "resume":
      case "standby":
      case "restart":
      case "wake":
        return this.#sleep(act.do, ref);
      case "read":
        // From the disk, or by waking it, or from the disk at first.
        return question(
          what,
          this.#gateMs(ref) + 2 * numbers.keeperCallMs + numbers.linkDeadMs,
          (to, signal) => read(to, ref, act, signal),
        );
      case "show":
        return question(
          what,
          0,
          (to) => to.sandboxes.get(ref),
          (sandbox) => tell({ type: "told-sandbox", sandbox }),
        );
      case "write":
        return question(what, this.#gateMs(ref) + numbers.keeperCallMs + numbers.linkDeadMs, (to, signal) =>
          to.files.write(ref, "/tmp/a", once("some text"), { parents: true }, signal),
        );
      case "saves":
        return question(what, 0, (to) => to.checkpoints.list(ref));
      case "execs":
        return question(
          what,
          0,
          (to) => to.execs.list(ref, { limit: 10 }),
          ({ items }) => {
            for (const exec of items) this.#told(exec, askedAt);
          },
        );
    }
  }

  #sleep(what: "pause" | "resume" | "standby" | "wake" | "restart", ref: string): Question {
    const { numbers, tell, note, recordOf } = this.#parts;
    const record = recordOf(ref);
    const bounds = {
      pause: pauseMs(record, numbers),
      resume: resumeMs(record, numbers),
      standby: standbyMs(numbers),
      wake: gateMs(record, numbers),
      restart: restartMs(record, numbers),
    };
    return question(
      [`${what} ${ref.slice(-6)}`, ref],
      bounds[what],
      ({ sandboxes }, signal) => sandboxes[what](ref, signal),
      (sandbox) => {
        note(() => `${what} ${ref.slice(-6)}: ${sandbox.status}`);
        tell({ type: "told-sandbox", sandbox });
        if (what === "pause") tell({ type: "paused", sandbox });
      },
    );
  }

  /** By its id. */
  rouse(id: string, what: "resume" | "wake"): Question {
    return this.#sleep(what, id);
  }

  /** By its id. */
  removeDrive(id: string): Question {
    return this.#drives.remove(id, false);
  }

  delete(ref: string, waitMs: number): Question {
    const { tell, note } = this.#parts;
    const what = `delete ${ref.slice(-6)}`;
    return question(
      [what, ref],
      // What has no readable record is removed before the answer.
      waitMs + 2 * this.#parts.numbers.stopAttemptMs,
      ({ sandboxes }, signal) => {
        tell({ type: "unwanted", id: ref });
        return sandboxes.remove(ref, { graceMs: 0, waitMs, signal });
      },
      (sandbox) => {
        note(() => `${what}: ${sandbox.status}`);
        tell({ type: "told-sandbox", sandbox });
      },
    );
  }

  #cleanup({ dryRun, emergency }: Extract<Act, { do: "cleanup" }>): Question {
    return question(["cleanup"], THOROUGH_MS, (engine) => {
      if (emergency && !dryRun) this.#parts.tell({ type: "emergency" });
      return engine.cleanup({ dryRun, emergency });
    });
  }

  #survey(what: "list" | "stats" | "events" | "drives"): Question {
    const { tell } = this.#parts;
    if (what === "drives")
      return question(
        [what],
        0,
        ({ drives }) => drives.list({ limit: 100 }),
        ({ items }) => {
          for (const drive of items) tell({ type: "told-drive", drive });
        },
      );
    if (what === "events") return question([what], 0, (engine) => engine.events({ limit: 20 }));
    if (what === "stats") return question([what], 0, (engine) => engine.stats());
    return question(
      [what],
      0,
      ({ sandboxes }) => sandboxes.list({ limit: 100 }),
      ({ items }) => {
        for (const sandbox of items) tell({ type: "told-sandbox", sandbox });
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
