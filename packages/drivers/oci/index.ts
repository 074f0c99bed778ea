export { checkStateDir, createOciDriver, type OciMachine, type OciOptions } from "./create.ts";
export { checkHost, type HostCheck } from "./doctor.ts";
export type { HostFacts, RuntimeFacts } from "./host.ts";
export type { RuntimeChoice } from "./runtime.ts";
