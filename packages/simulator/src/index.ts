export { INVARIANTS } from "./invariants/invariants.ts";
export { FAULTS } from "./schedule/fault-table.ts";
export { type Schedule, scheduleOf } from "./schedule/schedule.ts";
export { Runner } from "./simulation/campaign.ts";
export { shrink } from "./simulation/shrink.ts";
export { Simulation } from "./simulation/simulation.ts";
