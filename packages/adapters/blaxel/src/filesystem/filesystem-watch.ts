import { posix } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Type } from "@fastify/type-provider-typebox";
import { sendLines } from "@holdfast/adapter-shared";
import type { FileChange } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { AtPath, pathOf } from "./filesystem.ts";

const WatchQuery = Type.Object({ ignore: Type.Optional(Type.String()) });
const BELOW = "/**";
const KEEPALIVE = "[keepalive]\n";

export function watchRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;

  app.get(
    "/watch/filesystem/*",
    { schema: { params: AtPath, querystring: WatchQuery } },
    async ({ params, query }, reply) => {
      const signal = callers.signal(reply.raw);
      const asked = pathOf(params);
      const recursive = asked.endsWith(BELOW);
      const path = recursive ? asked.slice(0, -BELOW.length) || "/" : asked;
      const changes = await engine.files.watch(params.name, path, { recursive }, signal);
      const ignored = query.ignore?.split(",").filter((part) => part !== "") ?? [];
      const lines = changeLines(changes, ignored, numbers.streamKeepaliveMs);
      return sendLines(reply, context, { type: "application/x-ndjson", lines, signal });
    },
  );
}

const OPERATIONS: Readonly<Record<FileChange["kind"], string>> = {
  created: "CREATE",
  modified: "WRITE",
  removed: "REMOVE",
  overflow: "OVERFLOW",
};

/** Yields one line per change, and a keepalive line after each interval without changes. */
async function* changeLines(
  changes: AsyncIterable<FileChange>,
  ignored: readonly string[],
  keepaliveMs: number,
): AsyncGenerator<string, void, undefined> {
  const source = changes[Symbol.asyncIterator]();
  yield KEEPALIVE;
  try {
    for (let next = source.next(); ; ) {
      const step = await orNullAfter(next, keepaliveMs);
      if (step === null) {
        yield KEEPALIVE;
        continue;
      }
      if (step.done) return;
      next = source.next();
      const { kind, path } = step.value;
      if (!ignored.some((part) => path.includes(part))) yield changeLine(kind, path);
    }
  } finally {
    await source.return?.();
  }
}

async function orNullAfter<Value>(work: Promise<Value>, ms: number): Promise<Value | null> {
  const timer = new AbortController();
  const silence = sleep(ms, null, { signal: timer.signal }).catch(() => null);
  return Promise.race([work, silence]).finally(() => timer.abort());
}

function changeLine(kind: FileChange["kind"], path: string): string {
  const error = kind === "overflow" ? "Some changes were missed; read the directory again." : null;
  const change = { op: OPERATIONS[kind], name: posix.basename(path), path: posix.dirname(path), error };
  return `${JSON.stringify(change)}\n`;
}
