import type { Adapter } from "@holdfast/server/adapter";
import { BLAXEL } from "./errors.ts";
import { blaxelRoutes } from "./routes.ts";

export const blaxelAdapter: Adapter = {
  name: "blaxel",
  routes: blaxelRoutes,
  keyHeaders: [BLAXEL.keyHeader],
  previewTokens: { parameters: ["bl_preview_token"], headers: ["x-blaxel-preview-token"] },
};
