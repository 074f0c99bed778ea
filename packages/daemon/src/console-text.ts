import type { Stats } from "@holdfast/contract";
import { type Addresses, exposureWarning } from "./addresses.ts";

/** Text for the person who started the server, on stdout. */

export function upText(server: { addresses: Addresses; keyFile: string; host: string }): string {
  const { addresses, keyFile, host } = server;
  const urls = [addresses.local, ...addresses.remote.filter((url) => url !== addresses.local)];
  const lines = urls.map((url, at) => `  ${at === 0 ? "URL " : "    "}  ${url}`);
  const warning = exposureWarning(host);
  return [
    "",
    "Holdfast is up. Ctrl-C stops it; sandboxes keep running.",
    ...lines,
    `  key   ${keyFile}`,
    `  docs  ${addresses.local}/docs`,
    ...(warning === null ? [] : ["", `WARNING: ${warning}`]),
    "",
  ].join("\n");
}

export const STOPPING = "\nStopping. Sandboxes keep running. Press Ctrl-C again to stop at once.";

/** Returns the text that says what keeps running after the server has ended. */
export function stoppedText(sandboxes: Stats["sandboxes"] | null): string {
  if (sandboxes === null) return "Stopped. Sandboxes keep running; 'npm start' finds them again.";
  const asleep = sandboxes.standby ?? 0;
  const awake = (["ready", "degraded", "paused", "waking", "suspending", "creating"] as const).reduce(
    (sum, status) => sum + (sandboxes[status] ?? 0),
    0,
  );
  if (awake + asleep === 0) return "Stopped. No sandbox is running.";
  const parts = [
    ...(awake > 0 ? [`${awake} running ${awake === 1 ? "sandbox continues" : "sandboxes continue"}`] : []),
    ...(asleep > 0 ? [`${asleep} in standby ${asleep === 1 ? "is" : "are"} kept`] : []),
  ];
  const found = awake + asleep === 1 ? "it" : "them";
  return `Stopped. ${parts.join(", ")} without the server; 'npm start' finds ${found} again.`;
}
