import type { ExecRun } from "@holdfast/sdk";

const SCROLLBACK_BYTES = 262_144;
const NEWLINE = 10;

/**
 * The last of what a terminal showed, to be shown again. The journal can only be read from its beginning, so all of it is
 * read and the end of it kept.
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
  return withoutQuestions(lastOf(Buffer.concat(kept)));
}

/** From a line's beginning on, where something was cut away. */
function lastOf(shown: Buffer): Buffer {
  if (shown.length <= SCROLLBACK_BYTES) return shown;
  const last = shown.subarray(-SCROLLBACK_BYTES);
  return last.subarray(last.indexOf(NEWLINE) + 1);
}

/**
 * Programs ask terminals questions: where the cursor is, what kind they are, which colours they have. They had their answers
 * then; those to questions that are shown again would be typed into the command.
 */
export function withoutQuestions(shown: Buffer): Buffer {
  return Buffer.from(shown.toString("latin1").replace(QUESTIONS, ""), "latin1");
}

const ESCAPE = "\\x1b";
const QUESTIONS = new RegExp(
  [
    // Status reports and attributes: CSI … n, CSI … c.
    `${ESCAPE}\\[[?>=]?[\\d;]*[cn]`,
    // Colours: OSC … ? BEL, or ? ST.
    `${ESCAPE}\\]\\d+;(?:\\d+;)?\\?(?:\\x07|${ESCAPE}\\\\)`,
  ].join("|"),
  "g",
);
