import { describe, expect, it } from "vitest";
import { aDrive, json, refuse } from "../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../testing/bench.ts";

const bench = useBench();

async function stderrOf(line: string): Promise<string> {
  const { stderr } = await bench.bash(line);
  return stderr;
}

describe("an invalid value on the command line", () => {
  it.each([
    ["preview create box 99999", "the port '99999' is not valid. Use a port from 1 to 65535."],
    [
      "start box --name web --ready-port 99999 -- x",
      "the value '99999' of --ready-port is not valid. Use a port",
    ],
    [
      "start box --name web --connect-port 0 -- x",
      "the value '0' of --connect-port is not valid. Use a port",
    ],
    ["create --pids 0", "the value '0' of --pids is not valid. Use a whole number from 1 to 999999999."],
    [
      "create --memory 5t",
      "the value '5t' of --memory is not valid. Use a size of at least 1m with a unit of m or g",
    ],
    [
      "create --ttl 1d",
      "the value '1d' of --ttl is not valid. Use a duration of at least 1ms with a unit of ms, s, m or h",
    ],
    ["create --label x", "the value 'x' of --label is not valid. Use KEY=VALUE."],
    ["exec -e = box x", "the value '=' of --env is not valid. Use KEY=VALUE"],
  ])("%s says which, and what is valid, and sends nothing", async (command, words) => {
    expect(await stderrOf(`holdfast ${command}`)).toContain(`holdfast: ${words}`);
    expect(bench.requests()).toEqual([]);
  });

  it("of HOLDFAST_URL is named", async () => {
    for (const url of ["notaurl", "localhost:4750"])
      expect(await stderrOf(`HOLDFAST_URL=${url} holdfast ls`)).toBe(
        `holdfast: HOLDFAST_URL is '${url}', which is not an HTTP URL.\n`,
      );
  });
});

describe("a local file that does not exist", () => {
  it.each(["import x.tar", "drive import x.tar", "image import name x.tar", "cp x.tar box:/tmp/"])(
    "%s says so",
    async (command) => {
      bench.serve({ "POST /v1/drives/import": json(201, aDrive()) });
      expect(await stderrOf(`holdfast ${command}`)).toBe("holdfast: there is no file x.tar\n");
    },
  );
});

describe("a refusal of the server", () => {
  it.each([
    ["import /dev/null", "POST /v1/sandboxes/import", 409, "name_taken", "Choose another name with --name."],
    [
      "drive import /dev/null",
      "POST /v1/drives/import",
      409,
      "drive_exists",
      "Choose another name with --name.",
    ],
    ["create box", "POST /v1/sandboxes", 409, "name_taken", "Pass --if-exists return"],
    ["restart box", "POST /v1/sandboxes/sbx_0000000000000000/restart", 409, "wrong_state", "'holdfast get'"],
  ])("of %s has a hint that the command can follow", async (command, route, status, code, hint) => {
    const operation = command.startsWith("drive") ? "importDrive" : "importSandbox";
    const facts = command.includes("import") ? { operation } : {};
    bench.serve({ [route]: refuse(status, code, facts) });
    expect(await stderrOf(`holdfast ${command}`)).toContain(`\n${hint}`);
  });
});
