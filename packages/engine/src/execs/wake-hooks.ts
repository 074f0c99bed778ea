import { causeOf, type OnWake } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { aborted, raced, within } from "./clock.ts";
import { signalNumber } from "./exec.ts";
import type { Ledger } from "./ledger.ts";
import type { OpenExec } from "./open-exec.ts";
import type { Link } from "./ports.ts";
import type { ExecRecord } from "./records.ts";
import type { World } from "./world.ts";

const COMMAND_MS = 60_000;

/** Tells commands that asked for it that they were woken: their connections are gone, and only they know what to do. */
export class AfterWake {
  readonly #world: World;
  readonly #ledger: Ledger;

  constructor(world: World, ledger: Ledger) {
    this.#world = world;
    this.#ledger = ledger;
  }

  /** Once per wake, for each that runs. What becomes of it is an event. Never rejects. */
  async tell(cell: Cell): Promise<void> {
    const link = cell.links?.current;
    if (!link) return;
    const asked = [...cell.openExecs].filter(
      ({ record, acknowledged }) => acknowledged && record.spec.onWake,
    );
    await Promise.all(asked.map((exec) => this.#tellOne(cell, link, exec)));
  }

  async #tellOne(cell: Cell, link: Link, exec: OpenExec): Promise<void> {
    const { onWake } = exec.record.spec;
    if (onWake === null) return;
    try {
      await this.#say(exec, await this.#act(cell, link, exec, onWake));
    } catch (error) {
      // It goes on, and this server hears nothing more of it.
      if (this.#world.stopping.aborted) return;
      await this.#say(exec, `It could not be told that it was woken: ${causeOf(error).message}`);
    }
  }

  async #act(cell: Cell, link: Link, exec: OpenExec, onWake: OnWake): Promise<string> {
    const { clock, numbers, ids, stopping } = this.#world;
    if ("signal" in onWake) {
      const limit = { ms: numbers.keeperCallMs, what: "the signal", signal: stopping };
      const number = signalNumber(onWake.signal) ?? 0;
      await within(clock, limit, (signal) => link.signalExec(exec.record.id, number, signal));
      return `It was sent ${onWake.signal}.`;
    }
    const id = ids.exec();
    const { generation } = cell.record;
    const { env, cwd, user } = exec.record.spec;
    const spec = {
      argv: onWake.argv,
      env,
      cwd,
      user,
      timeoutMs: COMMAND_MS,
      stdin: null,
      tty: null,
      keepAwake: false,
      onWake: null,
    };
    const order: ExecRecord = {
      ...exec.record,
      id,
      generation,
      spec,
      digest: id,
      status: "starting",
      createdAt: clock.now(),
      startedAt: null,
    };
    const started = await this.#ledger.start(cell, order, { idempotency: undefined, link, awaited: false });
    await raced(aborted(started.over.signal), stopping);
    const { status, exitCode } = started.record;
    return `Its command for wakes, exec ${id}, ended: ${status}${exitCode === null ? "" : ` with ${exitCode}`}.`;
  }

  async #say({ record }: OpenExec, message: string): Promise<void> {
    const { clock, store, log } = this.#world;
    const { id: execId, sandboxId, generation } = record;
    await store
      .commit({
        changes: [],
        events: [{ at: clock.now(), type: "exec.woken", sandboxId, execId, generation, message }],
      })
      .catch((error: unknown) => {
        log.error({ exec: execId, cause: causeOf(error) }, "an event could not be stored");
      });
  }
}
