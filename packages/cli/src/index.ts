export { programOf } from "./program.ts";
