import type { Adapter } from "@holdfast/server/adapter";
import { runbookRoutes } from "./routes.ts";

export const runbookAdapter: Adapter = {
  name: "runbook",
  routes: runbookRoutes,
  expectedLabels: ["task_id"],
};
