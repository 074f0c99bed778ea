import type { ExecRun } from "@holdfast/sdk";

const SCROLLBACK_BYTES = 262_144;
const NEWLINE = 10;

/**
 * Returns the last part of a terminal's output, for replay. The API can't read a journal backwards from its end, so the
 * whole journal is read and only its end is kept.
 */
export async function scrollback(run: ExecRun, signal: AbortSignal): Promise<Buffer> {
  let kept: Buffer[] = [];
  let bytes = 0;
  for await (const { data } of run.output({ follow: false, onDropped: "skip", signal })) {
    kept.push(Buffer.from(data));
    bytes += data.length;
    if (bytes < 2 * SCROLLBACK_BYTES) continue;
    kept = [lastOf(Buffer.concat(kept))];
    bytes = kept[0]?.length ?? 0;
  }
  return withoutQueries(lastOf(Buffer.concat(kept)));
}

/**
 * Returns the last `SCROLLBACK_BYTES` of the output at most. If earlier output is cut off, the rest starts at the
 * beginning of a line.
 */
function lastOf(shown: Buffer): Buffer {
  if (shown.length <= SCROLLBACK_BYTES) return shown;
  const last = shown.subarray(-SCROLLBACK_BYTES);
  return last.subarray(last.indexOf(NEWLINE) + 1);
}

/**
 * Removes terminal queries (cursor position, device attributes, colours) from replayed output. The terminal answered
 * these queries when they were first shown. If it answered them again, the answers would be typed into the command.
 */
export function withoutQueries(shown: Buffer): Buffer {
  return Buffer.from(shown.toString("latin1").replace(QUERIES, ""), "latin1");
}

const ESCAPE = "\\x1b";
const QUERIES = new RegExp(
  [
    // Matches queries of status and device attributes: CSI … n, CSI … c.
    `${ESCAPE}\\[[?>=]?[\\d;]*[cn]`,
    // Matches colour queries: OSC … ? BEL, or OSC … ? ST.
    `${ESCAPE}\\]\\d+;(?:\\d+;)?\\?(?:\\x07|${ESCAPE}\\\\)`,
  ].join("|"),
  "g",
);
