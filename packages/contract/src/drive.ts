import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { DRIVE_ID_PATTERN, NAME_PATTERN } from "./ids.ts";
import { AbsolutePath, LabelChanges, Labels, List, Nullable, OneOf, Timestamp } from "./schema.ts";

/** The stored phase of a drive: what the engine is doing with it. */
export const DRIVE_PHASES = ["making", "ready", "deleting"] as const;

/**
 * The status shown to callers. It is computed from the phase and the last check of the drive's files, and is never
 * stored.
 */
const DRIVE_STATUSES = ["creating", "ready", "degraded", "deleting"] as const;
export const DriveStatus = OneOf(DRIVE_STATUSES, {
  description:
    "degraded: its files are missing from their place on the host; deleting: it can no longer be used",
});
export type DriveStatus = Static<typeof DriveStatus>;

const DriveName = Type.String({ pattern: NAME_PATTERN, description: "a DNS label, unique among drives" });

export const CreateDrive = Type.Object(
  {
    name: Type.Optional({ ...DriveName, description: "a DNS label; generated if absent" }),
    sizeMb: Type.Optional(
      Type.Integer({
        minimum: 32,
        maximum: 16_777_216,
        description:
          "gives the drive its own file system of this size; default: limited only by the host's disk",
      }),
    ),
    labels: Type.Optional(Labels),
    ifExists: Type.Optional(
      OneOf(["return", "fail"], { description: "what to do if the name is taken; default fail" }),
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

/** Where and how a drive is mounted. */
const mountFields = {
  path: { ...AbsolutePath, description: "mount point inside the sandbox; created if missing" },
  subpath: Type.Optional(
    Type.String({
      maxLength: 4096,
      description: "directory of the drive to mount, without `..`; created if missing",
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
    subpath: Type.String({ description: "`/` if the whole drive is mounted" }),
    readOnly: Type.Boolean(),
    state: OneOf(["proven", "unproven", "broken"], {
      description:
        "proven: the last proof saw the same directory from inside and outside; unproven: not checked since the mount was requested, or the sandbox is in standby; broken: see the cause",
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
    sizeMb: Nullable(Type.Integer({ description: "null if limited only by the host's disk" })),
    usage: Nullable(
      Type.Object(
        {
          usedBytes: Type.Integer({ minimum: 0 }),
          /** Free space on the drive's own file system if it has one, otherwise on the host's. */
          freeBytes: Type.Integer({ minimum: 0 }),
          measuredAt: Timestamp,
        },
        { description: "last measurement; null if never measured. Getting a single drive measures it" },
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
      { description: "sandboxes that mount it, awake or in standby" },
    ),
    createdAt: Timestamp,
    labels: Labels,
  },
  {
    $id: "Drive",
    title: "Drive",
    description: "a persistent directory that any number of sandboxes can mount at the same time",
  },
);
export type Drive = Static<typeof Drive>;

export const DriveList = List(Drive, "DriveList");
export type DriveList = Static<typeof DriveList>;
