import { expect, test } from "vitest";
import { addressesOf, exposureWarning } from "./addresses.ts";

const own = ["127.0.0.1", "10.0.0.5", "::1", "2001:db8::5"];

test.each([
  ["127.0.0.1", "http://127.0.0.1:4750", []],
  ["::1", "http://[::1]:4750", []],
  ["0.0.0.0", "http://127.0.0.1:4750", ["http://10.0.0.5:4750"]],
  ["::", "http://[::1]:4750", ["http://10.0.0.5:4750", "http://[2001:db8::5]:4750"]],
  ["0", "http://127.0.0.1:4750", ["http://10.0.0.5:4750"]],
  ["0:0:0:0:0:0:0:0", "http://[::1]:4750", ["http://10.0.0.5:4750", "http://[2001:db8::5]:4750"]],
  ["127.1", "http://127.0.0.1:4750", []],
  ["localhost", "http://localhost:4750", []],
  ["10.0.0.5", "http://10.0.0.5:4750", ["http://10.0.0.5:4750"]],
])("a server that listens at %s has its real addresses", (host, local, remote) => {
  expect(addressesOf(host, 4750, own)).toEqual({ local, remote });
});

test("a server that listens beyond this machine warns that keys travel unencrypted", () => {
  for (const host of ["127.0.0.1", "127.1.2.3", "127.1", "::1", "localhost"])
    expect(exposureWarning(host)).toBeNull();
  for (const host of ["0", "0.0.0.0", "::", "10.0.0.5"]) expect(exposureWarning(host)).toMatch(/unencrypted/);
});
