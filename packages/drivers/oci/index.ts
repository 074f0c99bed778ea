export { checkStateDir, createOciDriver, type OciMachine, type OciOptions } from "./create.ts";
export { findCriu } from "./criu-binary.ts";
export { checkHost, type HostCheck } from "./doctor.ts";
export { haltSandboxes } from "./halt.ts";
export type { HostFacts, RuntimeFacts } from "./host.ts";
export type { RuntimeChoice } from "./runtime.ts";
