import { readFile } from "node:fs/promises";
import * as contract from "@holdfast/contract";
import type { Static } from "typebox";
import { describe, expect, expectTypeOf, it } from "vitest";
import { file, generate } from "../generate.ts";
import * as sdk from "./types.generated.ts";

/** True if the types are assignable in both directions. */
type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;

describe("the generated types", () => {
  it("are up to date with the contract", async () => {
    expect(await generate()).toBe(await readFile(file, "utf8"));
  });

  it("are assignable to and from the contract's types", () => {
    expectTypeOf<Same<sdk.Sandbox, contract.Sandbox>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.SandboxList, contract.SandboxList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CreateSandbox, contract.CreateSandbox>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.UpdateDrive, contract.UpdateDrive>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.UpdateSandbox, contract.UpdateSandbox>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Checkpoint, contract.Checkpoint>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CheckpointList, contract.CheckpointList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CreateCheckpoint, contract.CreateCheckpoint>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Drive, contract.Drive>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.DriveList, contract.DriveList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CreateDrive, contract.CreateDrive>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Mount, contract.Mount>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.MountList, contract.MountList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.MountDrive, contract.MountDrive>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Preview, contract.Preview>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.PreviewList, contract.PreviewList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CreatePreview, contract.CreatePreview>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.PreviewToken, contract.PreviewToken>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.PreviewTokenList, contract.PreviewTokenList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.CreatePreviewToken, contract.CreatePreviewToken>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Proof, contract.Proof>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Exec, contract.Exec>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ExecList, contract.ExecList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.StartExec, contract.StartExec>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Process, contract.Process>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ProcessList, contract.ProcessList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.StartProcess, contract.StartProcess>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.StreamRecord, contract.StreamRecord>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.FileStat, contract.FileStat>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.FileList, contract.FileList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Event, contract.Event>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.EventList, contract.EventList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Image, contract.Image>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ImageList, contract.ImageList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Stats, contract.Stats>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.AuditReport, contract.AuditReport>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.SweepReport, contract.SweepReport>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.LayerHealth, contract.LayerHealth>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.AlertList, contract.AlertList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.DeliveryList, contract.DeliveryList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Diagnosis, contract.Diagnosis>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.LogList, contract.LogList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ResourceReport, contract.ResourceReport>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.SandboxStory, contract.SandboxStory>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.UsageList, contract.UsageList>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Health, contract.Health>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.Cause, contract.Cause>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ErrorCode, contract.ErrorCode>>().toEqualTypeOf<true>();
    expectTypeOf<Same<sdk.ErrorBody, Static<typeof contract.ErrorBody>>>().toEqualTypeOf<true>();
  });

  it("give every code of the registry its status", () => {
    for (const code of contract.ERROR_CODES)
      expect(sdk.ERROR_STATUSES[code]).toBe(contract.ERRORS[code].status);
  });
});
