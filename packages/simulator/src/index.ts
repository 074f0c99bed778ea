export { Runner } from "./campaign.ts";
export { FAULTS } from "./fault-table.ts";
export { INVARIANTS } from "./invariants.ts";
export { type Schedule, scheduleOf } from "./schedule.ts";
export { shrink } from "./shrink.ts";
export { Simulation } from "./simulation.ts";
