import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { describeDriver } from "../suite.ts";
import { findBinary } from "./runtime.ts";
import { testMachine } from "./testing.ts";

for (const runtime of ["crun", "runc"].filter((name) => findBinary(name) !== null)) {
  describeDriver(`oci (${runtime})`, async () => {
    const machine = await testMachine(runtime);
    return {
      driver: machine.driver,
      again: async () => (await machine.again()).driver,
      kill: (instance) => process.kill(instance.pid, "SIGKILL"),
      halt: (instance) => process.kill(instance.pid, "SIGSTOP"),
      takeRootOff: ({ sandboxId }) => {
        execFileSync("umount", ["-l", join(machine.stateDir, "sandboxes", sandboxId, "root")]);
      },
      reboot: machine.reboot,
      hidden: [machine.stateDir, process.cwd()],
      dispose: machine.dispose,
    };
  });
}
