import { Type } from "@fastify/type-provider-typebox";
import { outputMissing, records, sendLines } from "@holdfast/adapter-shared";
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
import type { App } from "@holdfast/server/adapter";
import { acceptAnyBody, readChunks } from "@holdfast/server/adapter";
import type { AdapterContext } from "../adapter-context.ts";
import { executionIdOf, orderOfStdin, stdinIdOf } from "./exec-ids.ts";

const InStream = Type.Object({
  execution: Type.String({ pattern: EXEC_ID_PATTERN }),
  stream: OneOf(OUTPUT_STREAMS),
});
const TokenQuery = Type.Object({ token: Type.String({ maxLength: 128 }) });
const InStdin = Type.Object({ stream: Type.String({ maxLength: 64 }) });
const ORDER_LENGTH = 20;
const NOTHING = new Uint8Array(0);

/**
 * Routes of streams. Command output can be read by any client with its URL; stdin can be written for commands that were
 * started with a stream id.
 */
export function streamRoutes(app: App, context: AdapterContext): void {
  const { engine, callers, links } = context;

  app.get(
    "/streams/:execution/:stream",
    { schema: { params: InStream, querystring: TokenQuery }, config: { public: true } },
    async ({ params, query }, reply) => {
      const { execution, stream } = params;
      links.check(execution, stream, query.token);
      const signal = callers.signal(reply.raw);
      await engine.execs.get(execution);
      const lines = bytesOf(engine.execs, execution, stream, signal);
      return sendLines(reply, context, { type: "text/plain", lines, signal });
    },
  );

  /**
   * Creates a stdin stream. No state is stored: the stream's id and the id of the command that will read it have the
   * same suffix.
   */
  app.post("/stream", { config: { optionalBody: true } }, async () => ({
    id: stdinIdOf(randomText(ORDER_LENGTH)),
  }));

  app.register(async (scope) => stdinRoute(scope as App, context));
}

/**
 * Streams output until the command ends. The first chunk is empty, so that the response starts at once, even without
 * output. If the beginning of the output is no longer kept, throws before that chunk, so that the reader gets an error
 * instead of the rest.
 */
async function* bytesOf(
  execs: ExecApi,
  id: string,
  stream: OutputStream,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  for await (const record of records(execs, id, signal, stream)) {
    if ("exec" in record && record.exec.truncated) throw outputMissing(record.exec);
    if (record.type === "start") yield NOTHING;
    else if ("data" in record) yield record.data;
  }
}

function stdinRoute(app: App, { engine, callers, numbers }: AdapterContext): void {
  acceptAnyBody(app);

  app.put("/stream/:stream", { schema: { params: InStdin } }, async ({ params, raw }, reply) => {
    const order = orderOfStdin(params.stream);
    if (order === null) {
      throw new HoldfastError("exec_not_found", { message: "There is no such stdin stream." });
    }
    const id = executionIdOf(order);
    await engine.execs.get(id);
    const signal = callers.signal(reply.raw);
    const done = new AbortController();
    const over = ended(id, AbortSignal.any([signal, done.signal]));
    const fed = feed(id, readChunks(raw, numbers.streamMaxMs), signal);
    // After the response, the connection is closed and the rest of the request body is not read, because the source of
    // the stdin bytes may never end. The client expects the response as soon as its command has ended.
    reply.header("connection", "close");
    try {
      await Promise.race([fed, over]);
    } finally {
      done.abort();
      // The first promise that settles ends the wait. The other one may fail later, and this failure is ignored.
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
