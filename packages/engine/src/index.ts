export * from "./api.ts";
export * from "./ports.ts";
export * from "./records.ts";
