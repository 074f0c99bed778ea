export { limitsOf, type Reading, type Readings, RULES } from "./alert-rules.ts";
export * from "./api.ts";
export { clockOf, systemClock, systemIds } from "./clock.ts";
export { createEngine } from "./engine.ts";
export { decide } from "./machine.ts";
export * from "./ports.ts";
export * from "./records.ts";
export { judge } from "./status.ts";
