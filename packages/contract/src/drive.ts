import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { DRIVE_ID_PATTERN, NAME_PATTERN } from "./ids.ts";
import { AbsolutePath, LabelChanges, Labels, List, Nullable, OneOf, Timestamp } from "./schema.ts";

/** What the engine is doing about a drive. Stored. */
export const DRIVE_PHASES = ["making", "ready", "deleting"] as const;

/** What a caller is told. Computed from the phase and from the last look at its files; never stored. */
export const DRIVE_STATUSES = ["creating", "ready", "degraded", "deleting"] as const;
export const DriveStatus = OneOf(DRIVE_STATUSES, {
  description: "degraded: its files are not where they belong; deleting: nothing of it may be used any more",
});
export type DriveStatus = Static<typeof DriveStatus>;

const DriveName = Type.String({ pattern: NAME_PATTERN, description: "a DNS label that no other drive has" });

export const CreateDrive = Type.Object(
  {
    name: Type.Optional({ ...DriveName, description: "a DNS label; made up where absent" }),
    sizeMb: Type.Optional(
      Type.Integer({
        minimum: 32,
        maximum: 16_777_216,
        description: "a file system of its own of this size; default: no limit but the host's disk",
      }),
    ),
    labels: Type.Optional(Labels),
    ifExists: Type.Optional(
      OneOf(["return", "fail"], { description: "what to do when the name is taken; default fail" }),
    ),
  },
  { $id: "CreateDrive", title: "CreateDrive", additionalProperties: false },
);
export type CreateDrive = Static<typeof CreateDrive>;

export const UpdateDrive = Type.Object(
  {
    labels: Type.Optional(LabelChanges),
  },
  { $id: "UpdateDrive", title: "UpdateDrive", additionalProperties: false },
);
export type UpdateDrive = Static<typeof UpdateDrive>;

/** Where a drive is mounted, or to be mounted. */
const mountFields = {
  path: { ...AbsolutePath, description: "where it appears inside; made where it is missing" },
  subpath: Type.Optional(
    Type.String({
      maxLength: 4096,
      description: "the directory of the drive that is mounted, without `..`; made where it is missing",
    }),
  ),
  readOnly: Type.Optional(Type.Boolean({ default: false })),
};

export const MountDrive = Type.Object(
  {
    drive: Type.String({ minLength: 1, maxLength: 64, description: "the drive's name or id" }),
    ...mountFields,
  },
  { $id: "MountDrive", title: "MountDrive", additionalProperties: false },
);
export type MountDrive = Static<typeof MountDrive>;

export const Mount = Type.Object(
  {
    drive: Type.String({ description: "the drive's name" }),
    driveId: Type.String({ pattern: DRIVE_ID_PATTERN }),
    path: Type.String(),
    subpath: Type.String({ description: "`/` where all of the drive is mounted" }),
    readOnly: Type.Boolean(),
    state: OneOf(["proven", "unproven", "broken"], {
      description:
        "proven: the same directory seen from inside and outside, by the last proof; unproven: not looked at since it was asked for, or asleep; broken: see the cause",
    }),
    cause: Nullable(Cause),
  },
  { $id: "Mount", title: "Mount" },
);
export type Mount = Static<typeof Mount>;

export const MountList = Type.Object({ items: Type.Array(Mount) }, { $id: "MountList", title: "MountList" });
export type MountList = Static<typeof MountList>;

export const Drive = Type.Object(
  {
    id: Type.String({ pattern: DRIVE_ID_PATTERN }),
    name: Type.String(),
    status: DriveStatus,
    cause: Nullable(Cause),
    sizeMb: Nullable(Type.Integer({ description: "null where only the host's disk limits it" })),
    usage: Nullable(
      Type.Object(
        {
          usedBytes: Type.Integer({ minimum: 0 }),
          /** Of its own file system, or of the host's. */
          freeBytes: Type.Integer({ minimum: 0 }),
          measuredAt: Timestamp,
        },
        { description: "as last measured; null where it never was. Asking for one drive measures it" },
      ),
    ),
    mounts: Type.Array(
      Type.Object({
        sandboxId: Type.String(),
        sandbox: Type.String({ description: "the sandbox's name" }),
        path: Type.String(),
        subpath: Type.String(),
        readOnly: Type.Boolean(),
      }),
      { description: "sandboxes that have it, asleep or not" },
    ),
    createdAt: Timestamp,
    labels: Labels,
  },
  {
    $id: "Drive",
    title: "Drive",
    description: "a persistent directory that any number of sandboxes can have at the same time",
  },
);
export type Drive = Static<typeof Drive>;

export const DriveList = List(Drive, "DriveList");
export type DriveList = Static<typeof DriveList>;
