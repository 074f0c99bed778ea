import type { StandbyKind } from "@holdfast/contract";
import type { Command } from "./command.ts";
import {
  drawParams,
  FAULTS,
  type FaultName,
  type FaultParams,
  isDriveFault,
  isForkFault,
  isHealFault,
  isSleepFault,
} from "./fault-table.ts";
import { Random } from "./random.ts";

/**
 * One action of a caller, or a fault. A sandbox, exec, checkpoint or drive is identified by the number of the step that
 * creates it. A fork continues execs of its source; the first of them is identified by the number of the step that
 * creates the fork.
 */
export type Act =
  | {
      do: "create";
      box: number;
      name: number | null;
      key: number | null;
      ifExists: "return" | "fail";
      wait: boolean;
      image: "host" | "nothing";
      /** Owner of the API key that creates the sandbox. */
      owner: number | null;
      coldStart: boolean;
      ttlMs: number | null;
      disposable: boolean;
      idleStandbyMs: number | null;
      /** The checkpoint to fork; null to start from an image. */
      from: number | null;
      /** The drives to mount. */
      mounts: { drive: number; path: number }[];
    }
  | {
      do: "drive";
      drive: number;
      name: number | null;
      /** Whether the drive has its own file system. */
      sized: boolean;
      ifExists: "return" | "fail";
    }
  | { do: "undrive"; drive: number; force: boolean }
  | { do: "show-drive"; drive: number }
  /** Mounts a drive at one of a few paths. */
  | { do: "mount"; box: number; drive: number; path: number; readOnly: boolean }
  | { do: "unmount"; box: number; path: number }
  | { do: "write-at"; box: number; path: number }
  | { do: "mounts"; box: number }
  /** Saves a checkpoint under a given name, or a generated one. */
  | { do: "save"; save: number; box: number; name: number | null }
  | { do: "unsave"; save: number }
  | { do: "saves"; box: number }
  | {
      do: "exec";
      exec: number;
      box: number;
      command: Command;
      timeoutMs: number | null;
      hasId: boolean;
      key: number | null;
      stdin: string | null;
      /** Whether stdin stays open, so that more input can be sent. */
      openStdin: boolean;
      /** How long the caller waits for the exec's end; null if the caller waits only for the start. */
      waitMs: number | null;
      keepAwake: boolean;
      /** How the exec learns that its sandbox was woken. */
      onWake: "argv" | "signal" | null;
    }
  /** Starts a process under one of a few names, with or without a restart policy. */
  | {
      do: "process";
      process: number;
      box: number;
      name: number;
      command: Command;
      restart: { on: "failure" | "always"; max: number; backoffMs: number } | null;
      ready: "port" | "output" | null;
      connect: boolean;
      waitMs: number;
    }
  | { do: "stop-process" | "restart-process"; box: number; name: number }
  | { do: "processes"; box: number }
  /** Repeats an earlier request, like a client that did not get the answer. */
  | { do: "again"; of: number }
  | { do: "wait"; exec: number; waitMs: number }
  | { do: "cancel" | "signal" | "show-exec"; exec: number }
  | { do: "output"; exec: number; follow: boolean }
  /** Appends to the exec's stdin at its current offset. */
  | { do: "type"; exec: number; text: string; end: boolean }
  | { do: "delete"; box: number; waitMs: number }
  | { do: "verify" | "show" | "write" | "execs"; box: number }
  | { do: "pause" | "resume" | "standby" | "wake" | "restart"; box: number }
  /**
   * Reads a file. If the sandbox is asleep, a file on disk is read without waking it. For a path that exists only while
   * the sandbox runs, `wake` decides whether the sandbox is woken or the read refused.
   */
  | { do: "read"; box: number; path: "/tmp/a" | "/proc/a"; wake: boolean }
  | { do: "list" | "stats" | "events" | "audit" | "drives" }
  | { do: "cleanup"; dryRun: boolean; emergency: boolean }
  /** Disconnects the caller that has waited longest. */
  | { do: "leave" }
  | { do: "fault"; fault: FaultName; params: FaultParams };

export interface Step {
  /** Milliseconds since the previous step. */
  after: number;
  act: Act;
}

/** A whole simulation: the steps in order, and the limits of the engine. Replaying it gives the same trace. */
export interface Schedule {
  seed: number;
  limits: {
    launchesAtOnce: number;
    execsPerSandbox: number;
    thrifty: boolean;
    /** The kind of standby that the simulated host supports. */
    standby: StandbyKind;
  };
  steps: Step[];
}

/** Number of distinct sandbox names. */
export const NAMES = 3;
const KEYS = 3;
const PROCESSES = 2;

/** The features that a schedule uses most. */
interface Topics {
  /** Whether sandboxes enter standby and are woken. */
  readonly isSleepy: boolean;
  /** Whether checkpoints are saved and forked. */
  readonly isForking: boolean;
  /** Whether drives are created and mounted. */
  readonly isDriving: boolean;
  /** Whether sandboxes stop serving, with enough time between faults for the engine to heal them. */
  readonly isBreaking: boolean;
  /** Whether there are named processes that end and are restarted. */
  readonly hasProcesses: boolean;
}

/** Returns all faults. Those that belong to the schedule's topics get a higher weight. */
const faultsAbout = ({ isSleepy, isForking, isDriving, isBreaking }: Topics) =>
  FAULTS.map((each) => {
    const isAbout =
      (isSleepy && isSleepFault(each.name)) ||
      (isForking && isForkFault(each.name)) ||
      (isBreaking && isHealFault(each.name));
    const isAboutDrives = isDriving && isDriveFault(each.name);
    // A fault of a feature that the schedule does not use would never strike, so it gets the weight 0.
    const isMoot = (!isForking && isForkFault(each.name)) || (!isDriving && isDriveFault(each.name));
    // The weight of drive faults is raised less than that of other faults, because there are more drive faults.
    const times = isMoot ? 0 : isAbout ? 5 : isAboutDrives ? 2 : 1;
    return { ...each, weight: times * each.weight };
  });

/**
 * Creates the schedule of a seed. Each schedule uses only a few faults and omits the others, so that it reaches
 * combinations that would be rare if all faults were used at once.
 */
export function scheduleOf(seed: number, steps: number): Schedule {
  return new Composer(seed).compose(steps);
}

class Composer {
  readonly #random: Random;
  readonly #seed: number;
  readonly #faults: [FaultName, ...FaultName[]];
  readonly #faultRate: number;
  readonly #topics: Topics;
  #saves: number[] = [];
  #drives: number[] = [];
  /** Paths at which a drive was mounted, or at which a mount was requested. */
  #mounted: { box: number; path: number }[] = [];
  #boxes: number[] = [];
  #execs: number[] = [];
  /** Sandboxes in which an exec or process was started. */
  #busy: number[] = [];
  /** Execs that read from an open stdin. */
  #readers: number[] = [];

  constructor(seed: number) {
    this.#seed = seed;
    const random = new Random(seed, 1);
    this.#random = random;
    this.#topics = {
      isSleepy: random.chance(0.5),
      isForking: random.chance(0.4),
      isDriving: random.chance(0.4),
      isBreaking: random.chance(0.25),
      hasProcesses: random.chance(0.4),
    };
    const count = random.pick([1, 2, 3, 5, 8, FAULTS.length]);
    const faults = faultsAbout(this.#topics);
    const favourites = Array.from({ length: count }, () => random.weighted(faults).name);
    this.#faults = [favourites[0] ?? "crash", ...favourites.slice(1)];
    this.#faultRate = random.pick([0.1, 0.25, 0.4, 0.55]);
  }

  compose(count: number): Schedule {
    const random = this.#random;
    const limits = {
      launchesAtOnce: random.pick([1, 1, 2, 4]),
      execsPerSandbox: random.pick([1, 2, 8]),
      thrifty: random.chance(0.15),
      standby: random.chance(0.9) ? ("memory" as const) : ("files" as const),
    };
    const steps: Step[] = [];
    while (steps.length < count) steps.push({ after: this.#pause(), act: this.#act(steps.length) });
    return { seed: this.#seed, limits, steps };
  }

  #pause(): number {
    const random = this.#random;
    const draw = random.unit();
    if (this.#topics.isBreaking && draw < 0.15) return random.between(3_000, 30_000);
    if (draw < 0.4) return 0;
    if (draw < 0.7) return random.between(1, 60);
    if (draw < 0.92) return random.between(100, 3_000);
    return random.between(3_000, 20_000);
  }

  #act(number: number): Act {
    const random = this.#random;
    const { isSleepy, isForking, isDriving } = this.#topics;
    if (random.chance(this.#faultRate)) return this.#fault();
    if (isDriving && this.#drives.length === 0) return this.#makeDrive(number);
    if (this.#boxes.length === 0 || random.chance(0.18)) return this.#create(number);
    if (isDriving && random.chance(0.45)) return this.#drive(number);
    if (this.#topics.hasProcesses && random.chance(0.4)) return this.#process(number);
    if (this.#execs.length === 0 || random.chance(0.3)) return this.#exec(number);
    if (isForking && random.chance(0.5)) return this.#save(number);
    if (random.chance(isSleepy ? 0.6 : 0.1)) return this.#sleep();
    const [box = 0] = this.#recent(this.#boxes);
    const [exec = 0] = this.#recent(this.#execs);
    const all: readonly { weight: number; act: Act }[] = [
      {
        weight: isForking ? 2 : 4,
        act: { do: "delete", box, waitMs: random.pick([0, 3_000, 30_000]) },
      },
      { weight: 3, act: { do: "again", of: random.chance(0.4) ? box : exec } },
      { weight: 4, act: { do: "wait", exec, waitMs: random.pick([0, 2_000, 30_000]) } },
      { weight: 2, act: { do: "cancel", exec } },
      { weight: 1, act: { do: "signal", exec } },
      { weight: 1, act: { do: "show-exec", exec } },
      { weight: 2, act: { do: "output", exec, follow: random.chance(0.6) } },
      { weight: 4, act: this.#type(number) },
      { weight: 1, act: { do: "verify", box } },
      { weight: 1, act: { do: "show", box } },
      { weight: 1, act: { do: "write", box } },
      { weight: 3, act: { do: "restart", box } },
      { weight: 1, act: { do: "execs", box } },
      { weight: 1, act: { do: random.pick(["list", "stats", "events", "audit", "drives"]) } },
      { weight: 1, act: { do: "cleanup", dryRun: random.chance(0.3), emergency: random.chance(0.5) } },
      { weight: 2, act: { do: "leave" } },
    ];
    return random.weighted(all).act;
  }

  #sleep(): Act {
    const random = this.#random;
    const [box = 0] = this.#recent(this.#boxes);
    const path = random.pick(["/tmp/a", "/proc/a"] as const);
    const all: readonly { weight: number; act: Act }[] = [
      { weight: 6, act: { do: "standby", box } },
      { weight: 4, act: { do: "wake", box } },
      { weight: 1, act: { do: "pause", box } },
      { weight: 2, act: { do: "resume", box } },
      { weight: 1, act: { do: "write", box } },
      { weight: 3, act: { do: "read", box, path, wake: random.chance(0.5) } },
    ];
    return random.weighted(all).act;
  }

  /** Creates, mounts, writes to, unmounts or removes a drive. */
  #drive(number: number): Act {
    const random = this.#random;
    if (random.chance(this.#drives.length < 3 ? 0.3 : 0.08)) return this.#makeDrive(number);
    const [box = 0] = this.#recent(this.#boxes);
    const [drive = 0] = this.#recent(this.#drives);
    const path = this.#path();
    const there = random.chance(0.8)
      ? (random.pick(this.#mounted.slice(-4)) ?? { box, path })
      : { box, path };
    const all: readonly { weight: number; act: Act }[] = [
      { weight: 9, act: { do: "mount", box, drive, path, readOnly: random.chance(0.15) } },
      { weight: 4, act: { do: "unmount", ...there } },
      { weight: 4, act: { do: "write-at", ...there } },
      { weight: 2, act: { do: "undrive", drive, force: random.chance(0.4) } },
      { weight: 2, act: { do: "show-drive", drive } },
      { weight: 1, act: { do: "mounts", box } },
    ];
    const { act } = random.weighted(all);
    if (act.do === "mount") this.#mounted.push({ box, path });
    return act;
  }

  /** Picks a mount path. One path is picked most often, so that mounts conflict. */
  #path(): number {
    return this.#random.pick([0, 0, 0, 1, 1, 2]);
  }

  #makeDrive(drive: number): Act {
    const random = this.#random;
    this.#drives.push(drive);
    return {
      do: "drive",
      drive,
      name: random.chance(0.6) ? random.below(NAMES) : null,
      sized: random.chance(0.4),
      ifExists: random.pick(["return", "fail"]),
    };
  }

  /** Picks the drives of a new sandbox. */
  #mounts(box: number): { drive: number; path: number }[] {
    const random = this.#random;
    if (this.#drives.length === 0 || !random.chance(0.45)) return [];
    const count = random.chance(0.8) ? 1 : 2;
    return Array.from({ length: count }, () => {
      const [drive = 0] = this.#recent(this.#drives);
      const path = this.#path();
      this.#mounted.push({ box, path });
      return { drive, path };
    });
  }

  /** Creates, uses or removes a saved checkpoint. */
  #save(number: number): Act {
    const random = this.#random;
    const [box = 0] = this.#recent(this.#boxes);
    const [save = 0] = this.#recent(this.#saves);
    const draw = random.unit();
    if (this.#saves.length === 0 || draw < 0.35) {
      this.#saves.push(number);
      const [busy = box] = this.#busy.slice(-1);
      return {
        do: "save",
        save: number,
        box: random.chance(0.6) ? busy : box,
        name: random.chance(0.5) ? random.below(NAMES) : null,
      };
    }
    if (draw < 0.43) return { do: "unsave", save };
    if (draw < 0.47) return { do: "saves", box };
    this.#execs.push(number);
    const { name, key, ...rest } = this.#create(number);
    const isPlain = random.chance(0.6);
    return { ...rest, name: isPlain ? null : name, key: isPlain ? null : key, from: save };
  }

  /**
   * Picks an id. Recent ids are picked more often, because most operations on an object follow soon after its creation.
   */
  #recent(all: readonly number[]): number[] {
    const random = this.#random;
    const some = random.chance(0.8) ? all.slice(-3) : all;
    return [random.pick(some) ?? 0];
  }

  /** Creates stdin input. Every piece is unique, so that a piece that arrives twice is noticed. */
  #type(number: number): Act {
    const [exec] = this.#recent(this.#readers.length > 0 ? this.#readers : this.#execs);
    return { do: "type", exec: exec ?? 0, text: `<${number}>`, end: this.#random.chance(0.2) };
  }

  #fault(): Act {
    const fault = this.#random.pick(this.#faults);
    return { do: "fault", fault, params: drawParams(fault, this.#random) };
  }

  #create(box: number): Extract<Act, { do: "create" }> {
    const random = this.#random;
    this.#boxes.push(box);
    return {
      do: "create",
      box,
      name: random.chance(0.6) ? random.below(NAMES) : null,
      key: random.chance(0.3) ? random.below(KEYS) : null,
      ifExists: random.pick(["return", "fail"]),
      wait: random.chance(0.75),
      image: random.chance(0.97) ? "host" : "nothing",
      owner: random.pick([null, 0, 1]),
      coldStart: random.chance(0.35),
      ttlMs: random.chance(0.08) ? random.pick([5_000, 25_000]) : null,
      disposable: random.chance(0.25),
      idleStandbyMs: random.chance(this.#topics.isSleepy ? 0.3 : 0.1) ? random.pick([2_000, 8_000]) : null,
      from: null,
      mounts: this.#mounts(box),
    };
  }

  #exec(exec: number): Act {
    const random = this.#random;
    const [box = 0] = this.#recent(this.#boxes);
    this.#execs.push(exec);
    this.#busy.push(box);
    const command = this.#command();
    const openStdin = command.kind === "cat" && random.chance(0.5);
    if (openStdin) this.#readers.push(exec);
    return {
      do: "exec",
      exec,
      box,
      command,
      timeoutMs: random.chance(0.3) ? random.pick([500, 3_000, 10_000]) : null,
      hasId: random.chance(0.7),
      key: random.chance(0.15) ? random.below(KEYS) : null,
      stdin: command.kind === "cat" ? "some words for stdin" : null,
      openStdin,
      waitMs: random.chance(0.5) ? random.pick([1_000, 30_000]) : null,
      keepAwake: !random.chance(0.4),
      onWake: random.chance(0.15) ? random.pick(["argv", "argv", "signal"]) : null,
    };
  }

  /** Starts, stops or restarts a process. */
  #process(process: number): Act {
    const random = this.#random;
    const [box = 0] = this.#recent(this.#boxes);
    const name = random.below(PROCESSES);
    const draw = random.unit();
    if (draw < 0.2) return { do: "stop-process", box, name };
    if (draw < 0.35) return { do: "restart-process", box, name };
    if (draw < 0.42) return { do: "processes", box };
    this.#busy.push(box);
    const ms = random.pick([null, null, 5, 300, 4_000]);
    return {
      do: "process",
      process,
      box,
      name,
      command: { kind: "run", ms, exitCode: random.pick([0, 1, 1]), prints: random.below(3) },
      restart: random.chance(0.75)
        ? {
            on: random.pick(["failure", "always"]),
            max: random.pick([0, 1, 3]),
            backoffMs: random.pick([10, 200, 2_000]),
          }
        : null,
      ready: random.chance(0.3) ? random.pick(["port", "output"]) : null,
      connect: random.chance(0.15),
      waitMs: random.pick([0, 3_000]),
    };
  }

  #command(): Command {
    const random = this.#random;
    const draw = random.unit();
    if (draw < 0.12) return { kind: "cat" };
    if (draw < 0.16) return { kind: "missing" };
    const exitCode = random.pick([0, 0, 1, 137]);
    const prints = random.below(3);
    if (draw < (this.#topics.isForking ? 0.45 : 0.28)) return { kind: "run", ms: null, exitCode, prints };
    return { kind: "run", ms: random.pick([0, 5, 300, 4_000, 20_000]), exitCode, prints };
  }
}
