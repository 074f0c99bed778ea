export { type Config, defaultStateDir, readConfig } from "./config.ts";
