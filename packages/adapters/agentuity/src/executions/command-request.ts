/** The fields of a request that describe a command and its streams. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { isAnything, type Known, refuseFields } from "@holdfast/adapter-shared";

const Text = Type.Optional(Type.String());

export const Command = Type.Array(Type.String(), { minItems: 1, maxItems: 4_096 });

/**
 * The streams of a command: output can be returned or ignored, and stdin can be read from a stream. Other targets are
 * not supported.
 */
export const Streams = Type.Object({
  stdout: Text,
  stderr: Text,
  stdin: Text,
  timestamps: Type.Optional(Type.Boolean()),
});
export type Streams = Static<typeof Streams>;

const STREAMS: Known = {
  stdout: (value) => value === "ignore",
  stderr: (value) => value === "ignore",
  stdin: isAnything,
  timestamps: (value) => value === false,
};
export const refuseStreams = (where: string, streams: Streams | undefined): void =>
  refuseFields(where, streams ?? {}, STREAMS);
