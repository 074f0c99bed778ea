import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { describeDriver } from "../contract-suite/suite.ts";
import { identityOf } from "./machine/instance-identity.ts";
import { findBinary } from "./machine/runtime.ts";
import { processOf, testMachine } from "./testing/test-machine.ts";

for (const runtime of ["crun", "runc"].filter((name) => findBinary(name) !== null)) {
  describeDriver(`oci (${runtime})`, async () => {
    const machine = await testMachine(runtime);
    return {
      driver: machine.driver,
      again: async () => (await machine.again()).driver,
      kill: (instance) => process.kill(processOf(instance).pid, "SIGKILL"),
      halt: (instance) => process.kill(processOf(instance).pid, "SIGSTOP"),
      strangers: (instance) =>
        [{ startTime: "1" }, { hostBootId: "another" }].map((changes) => ({
          ...instance,
          identity: identityOf({ ...processOf(instance), ...changes }),
        })),
      takeRootOff: ({ sandboxId }) => {
        execFileSync("umount", ["-l", join(machine.stateDir, "sandboxes", sandboxId, "root")]);
      },
      reboot: machine.reboot,
      hidden: [machine.stateDir, process.cwd()],
      dispose: machine.dispose,
    };
  });
}
