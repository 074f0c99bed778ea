import { expect, test } from "vitest";
import { HostileDriver } from "../testing/hostile-driver.ts";
import { capabilityNames, requireCapability, standbySupport } from "./capabilities.ts";

test("a missing capability is refused as not_supported, naming the driver and the ability", () => {
  const driver = new HostileDriver();
  expect(requireCapability(driver, "freezer")).toBe(driver);
  driver.capabilities = { ...driver.capabilities, freezer: null };
  expect(() => requireCapability(driver, "freezer")).toThrow(
    expect.objectContaining({
      code: "not_supported",
      message: "The driver 'hostile' does not support pausing sandboxes.",
    }),
  );
});

test("the listed capabilities are those that work on this host", () => {
  const driver = new HostileDriver();
  expect(capabilityNames(driver)).toHaveLength(9);
  driver.standby = { kind: "files", why: "there is no criu" };
  driver.capabilities = { ...driver.capabilities, drives: null };
  const names = capabilityNames(driver);
  expect(names).not.toContain("standby");
  expect(names).not.toContain("drives");
  expect(names).toHaveLength(7);
});

test("a driver without memory standby suspends to files", () => {
  const driver = new HostileDriver();
  driver.capabilities = { ...driver.capabilities, standby: null };
  expect(standbySupport(driver)).toMatchObject({ kind: "files" });
});
