import type { Adapter } from "@holdfast/server/adapter";
import { agentuityRoutes } from "./routes.ts";

export const agentuityAdapter: Adapter = { name: "agentuity", routes: agentuityRoutes };
