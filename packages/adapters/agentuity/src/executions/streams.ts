import { Type } from "@fastify/type-provider-typebox";
import {
  EXEC_ID_PATTERN,
  HoldfastError,
  isTerminal,
  OneOf,
  OUTPUT_STREAMS,
  type OutputStream,
  randomText,
} from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";
import { readChunks } from "../../body.ts";
import type { App } from "../../context.ts";
import { takeAnyBody } from "../../routes/files.ts";
import { records } from "../exec-records.ts";
import { sendLines } from "../line-sender.ts";
import { executionIdOf, orderOfStdin, stdinIdOf } from "./exec-ids.ts";
import type { Parts } from "./parts.ts";

const InStream = Type.Object({
  execution: Type.String({ pattern: EXEC_ID_PATTERN }),
  stream: OneOf(OUTPUT_STREAMS),
});
const TokenQuery = Type.Object({ token: Type.String({ maxLength: 128 }) });
const InStdin = Type.Object({ stream: Type.String({ maxLength: 64 }) });
const ORDER_LENGTH = 20;
const NOTHING = new Uint8Array(0);

/** What commands write, for whoever has the URL; and what they read, where a stream was made for it. */
export function streamRoutes(app: App, parts: Parts): void {
  const { engine, callers, links } = parts;

  app.get(
    "/streams/:execution/:stream",
    { schema: { params: InStream, querystring: TokenQuery }, config: { public: true } },
    async ({ params, query }, reply) => {
      const { execution, stream } = params;
      links.check(execution, stream, query.token);
      const signal = callers.signal(reply.raw);
      await engine.execs.get(execution);
      const lines = bytesOf(engine.execs, execution, stream, signal);
      return sendLines(reply, parts, { type: "text/plain", lines, signal });
    },
  );

  /** Nothing is kept of it: it is called as the command will be that reads it. */
  app.post("/stream", { config: { optionalBody: true } }, async () => ({
    id: stdinIdOf(randomText(ORDER_LENGTH)),
  }));

  app.register(async (scope) => stdinRoute(scope as App, parts));
}

/** To the end of the command. The first is empty: what can be read begins at once, though there may be nothing yet. */
async function* bytesOf(
  execs: ExecApi,
  id: string,
  stream: OutputStream,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  yield NOTHING;
  for await (const record of records(execs, id, signal, stream)) {
    if ("data" in record) yield record.data;
  }
}

function stdinRoute(app: App, { engine, callers, numbers }: Parts): void {
  takeAnyBody(app);

  app.put("/stream/:stream", { schema: { params: InStdin } }, async ({ params, raw }, reply) => {
    const order = orderOfStdin(params.stream);
    if (order === null) {
      throw new HoldfastError("exec_not_found", { message: "There is no such stream of stdin." });
    }
    const id = executionIdOf(order);
    await engine.execs.get(id);
    const signal = callers.signal(reply.raw);
    const done = new AbortController();
    const over = ended(id, AbortSignal.any([signal, done.signal]));
    const fed = feed(id, readChunks(raw, numbers.streamMaxMs), signal);
    // The client waits for this answer when its command has ended, though nobody may ever end what it reads from.
    reply.header("connection", "close");
    try {
      await Promise.race([fed, over]);
    } finally {
      done.abort();
      // Whichever is left over has nobody to tell of its end.
      for (const rest of [fed, over]) rest.catch(() => undefined);
    }
    return { success: true };
  });

  async function feed(id: string, chunks: AsyncIterable<Uint8Array>, signal: AbortSignal): Promise<void> {
    const give = (data: Uint8Array, end: boolean) =>
      engine.execs.writeStdin(id, { offset: null, data, end }, signal);
    for await (const chunk of chunks) await give(chunk, false);
    await give(NOTHING, true);
  }

  async function ended(id: string, signal: AbortSignal): Promise<void> {
    for (;;) {
      const { status } = await engine.execs.wait(id, { waitMs: numbers.execWaitMaxMs, signal });
      if (isTerminal(status)) return;
      signal.throwIfAborted();
    }
  }
}
