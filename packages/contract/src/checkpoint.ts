import { type Static, Type } from "typebox";
import { CHECKPOINT_ID_PATTERN, NAME_PATTERN, SANDBOX_ID_PATTERN } from "./ids.ts";
import { StandbyKind } from "./sandbox.ts";
import { List, Timestamp } from "./schema.ts";

export const CreateCheckpoint = Type.Object(
  {
    name: Type.Optional(
      Type.String({
        pattern: NAME_PATTERN,
        description: "a DNS label that no other checkpoint of the sandbox has; made up where absent",
      }),
    ),
  },
  { $id: "CreateCheckpoint", title: "CreateCheckpoint", additionalProperties: false },
);
export type CreateCheckpoint = Static<typeof CreateCheckpoint>;

export const Checkpoint = Type.Object(
  {
    id: Type.String({ pattern: CHECKPOINT_ID_PATTERN }),
    name: Type.String(),
    sandboxId: Type.String({ pattern: SANDBOX_ID_PATTERN }),
    kind: StandbyKind,
    createdAt: Timestamp,
    generation: Type.Integer({ description: "of the instance that it was taken of" }),
    sizeBytes: Type.Integer({ minimum: 0, description: "what it takes on disk, files and memory" }),
    memoryBytes: Type.Integer({ minimum: 0 }),
    execs: Type.Array(Type.String(), {
      description: "execs that were under way, and are under way again in each fork, under ids of their own",
    }),
  },
  {
    $id: "Checkpoint",
    title: "Checkpoint",
    description: "a sandbox's files, and its memory where that can be had, as they were at one moment",
  },
);
export type Checkpoint = Static<typeof Checkpoint>;

export const CheckpointList = List(Checkpoint, "CheckpointList");
export type CheckpointList = Static<typeof CheckpointList>;
