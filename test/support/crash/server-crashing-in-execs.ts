/**
 * The real server, except that it kills itself with SIGKILL at one point in the life of one exec. Its commits and its
 * requests to keepers pass through wrappers in this file.
 */
import { subscribe } from "node:diagnostics_channel";
import type { IncomingMessage, ServerResponse } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import type { Change, Driver, Link, Ports, Store } from "@holdfast/engine";
import { replacing } from "../server/replacing.ts";
import { serve } from "../server/wrapped-server.ts";
import type { CrashPoint } from "./exec-crash-points.ts";

const { HOLDFAST_CRASH_AT: chosen, HOLDFAST_CRASH_EXEC: exec = "" } = process.env;
/** Time after which the request has been sent but its response is not received. */
const UNHEARD_MS = 100;

function at(point: CrashPoint): void {
  if (point === chosen) process.kill(process.pid, "SIGKILL");
}

/** Sends the request, and kills the server before or after the response is received. */
async function asked<Answer>(
  sent: CrashPoint,
  heard: CrashPoint,
  ask: () => Promise<Answer>,
): Promise<Answer> {
  const answer = ask();
  if (sent === chosen) await sleep(UNHEARD_MS);
  at(sent);
  const value = await answer;
  at(heard);
  return value;
}

const POINTS_OF_CHANGES: Partial<Record<Change["kind"], [before: CrashPoint, after: CrashPoint]>> = {
  "exec.insert": ["before the exec is stored", "when the exec is stored"],
  "exec.end": ["before the end is stored", "when the end is stored"],
  "exec.forget": ["before the exec's deletion is stored", "when the exec's deletion is stored"],
};

const concerns = (change: Change): boolean =>
  change.kind === "exec.forget"
    ? change.ids.some((id) => id === exec)
    : (change.kind === "exec.insert" || change.kind === "exec.end") && change.record.id === exec;

const crashingStore = <S extends Store>(store: S): S =>
  replacing(store, {
    commit: async (commit) => {
      const points = commit.changes.filter(concerns).map(({ kind }) => POINTS_OF_CHANGES[kind]);
      for (const point of points) if (point) at(point[0]);
      await store.commit(commit);
      for (const point of points) if (point) at(point[1]);
    },
  } as Partial<S>);

const crashingLink = (link: Link): Link =>
  replacing(link, {
    startExec: (order, signal) => {
      const ask = () => link.startExec(order, signal);
      return order.id === exec ? asked("when the start was sent", "when the start was answered", ask) : ask();
    },
    readExec: (id, from, signal) => {
      const ask = () => link.readExec(id, from, signal);
      return id === exec ? asked("when output was requested", "when output was read", ask) : ask();
    },
    writeStdin: (id, chunk, signal) => {
      const ask = () => link.writeStdin(id, chunk, signal);
      return id === exec && chunk.offset > 0
        ? asked("when stdin was sent", "when stdin was accepted", ask)
        : ask();
    },
    cancelExec: (id, signal) => {
      const ask = () => link.cancelExec(id, signal);
      if (id !== exec) return ask();
      at("before the cancel is sent");
      return asked("when the cancel was sent", "when the cancel was answered", ask);
    },
    forgetExec: (...given) => {
      const ask = () => link.forgetExec(...given);
      return given[0] === exec
        ? asked("when the forget request was sent", "when the forget request was answered", ask)
        : ask();
    },
    onExecEnd: (listener) =>
      link.onExecEnd((ended) => {
        if (ended.id === exec) at("when the end was received");
        listener(ended);
      }),
  });

/**
 * Kills the server after a part of a response's body was written: of the call that started the exec, or of a stream of
 * its output.
 */
function crashInAnswers(): void {
  subscribe("http.server.response.created", (message) => {
    const { request, response } = message as { request: IncomingMessage; response: ServerResponse };
    const { write, end } = response;
    let written = 0;
    response.write = function (this: ServerResponse, ...given: Parameters<typeof write>) {
      written += 1;
      if (written === 3 && request.url?.includes(`/v1/execs/${exec}/output`))
        half(response, given[0], "in the middle of the stream");
      return write.apply(this, given);
    } as typeof write;
    response.end = function (this: ServerResponse, ...given: Parameters<typeof end>) {
      if (request.method === "POST" && String(given[0]).includes(`"id":"${exec}"`))
        half(response, given[0], "in the middle of the response");
      return end.apply(this, given);
    } as typeof end;
  });
}

/** Writes half of a chunk, which goes to the socket at once, and kills the server. */
function half(response: ServerResponse, chunk: unknown, point: CrashPoint): void {
  if (point !== chosen) return;
  const bytes = Buffer.from(chunk as string | Uint8Array);
  response.flushHeaders();
  response.socket?.write(bytes.subarray(0, Math.floor(bytes.length / 2)));
  at(point);
}

const crashing = (ports: Ports): Ports => {
  const connect: Driver["connect"] = async (...given) => crashingLink(await ports.driver.connect(...given));
  return { ...ports, store: crashingStore(ports.store), driver: replacing(ports.driver, { connect }) };
};
crashInAnswers();

await serve(crashing);
