import { type Static, Type } from "typebox";
import { CHECKPOINT_ID_PATTERN, NAME_PATTERN, SANDBOX_ID_PATTERN } from "./ids.ts";
import { StandbyKind } from "./sandbox.ts";
import { List, Timestamp } from "./schema.ts";

export const CreateCheckpoint = Type.Object(
  {
    name: Type.Optional(
      Type.String({
        pattern: NAME_PATTERN,
        description: "a DNS label, unique among the sandbox's checkpoints; generated if absent",
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
    generation: Type.Integer({ description: "generation of the sandbox when the checkpoint was taken" }),
    sizeBytes: Type.Integer({ minimum: 0, description: "size on disk, files and memory together" }),
    memoryBytes: Type.Integer({ minimum: 0 }),
    execs: Type.Array(Type.String(), {
      description: "execs that were running; they continue in each fork under new ids",
    }),
  },
  {
    $id: "Checkpoint",
    title: "Checkpoint",
    description: "a snapshot of a sandbox's files, and of its memory if the host supports it",
  },
);
export type Checkpoint = Static<typeof Checkpoint>;

export const CheckpointList = List(Checkpoint, "CheckpointList");
export type CheckpointList = Static<typeof CheckpointList>;
