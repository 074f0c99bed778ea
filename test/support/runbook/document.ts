import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** Commands of the runbook that are run one after the other in the same scene. */
interface Passage {
  heading: string;
  scene: string;
  blocks: Block[];
}

export interface Block {
  /** Line number of the first command in the document. */
  line: number;
  text: string;
  /** Expected output: text, or a pattern between slashes. */
  expected: string[];
  exitCode: number;
}

export const RUNBOOK = fileURLToPath(new URL("../../../docs/runbook.md", import.meta.url));

const NOTE = /^<!-- (scene: .+) -->$/;

/**
 * Returns every block of shell commands, with the scene and the expected output from the comment above it. A block
 * without such a comment is an error, because every command in the document is run.
 */
export function passagesOf(document = readFileSync(RUNBOOK, "utf8")): Passage[] {
  const lines = document.split("\n");
  const passages: Passage[] = [];
  let heading = "";
  for (let i = 0; i < lines.length; i += 1) {
    const line = lines[i] ?? "";
    heading = /^## (.+)$/.exec(line)?.[1] ?? heading;
    if (/^ *```/.test(line) && !line.startsWith("```")) throw new Error(`line ${i + 1}: a block is indented`);
    if (!line.startsWith("```")) continue;
    const end = lines.indexOf("```", i + 1);
    if (end < 0) throw new Error(`line ${i + 1}: the block has no end`);
    if (/^```(sh|bash|shell|console)$/.test(line)) {
      const note = NOTE.exec(lines[i - 1] ?? "")?.[1];
      if (note === undefined)
        throw new Error(`line ${i + 1}: nothing says which scene the commands belong to`);
      add(passages, heading, note, { line: i + 2, text: lines.slice(i + 1, end).join("\n") });
    } else if (line !== "```text") throw new Error(`line ${i + 1}: ${line} is neither sh nor text`);
    i = end;
  }
  return passages;
}

function add(passages: Passage[], heading: string, note: string, block: Pick<Block, "line" | "text">): void {
  const facts = note.split("; ").map((fact) => /^(scene|expect|exit): (.+)$/.exec(fact) ?? []);
  const wrong = facts.some(([, name]) => name === undefined);
  const valuesOf = (wanted: string) =>
    facts.flatMap(([, name, value]) => (name === wanted && value ? [value] : []));
  const [scene] = valuesOf("scene");
  if (wrong || scene === undefined) throw new Error(`line ${block.line - 2}: can't be read: ${note}`);
  const whole: Block = { ...block, expected: valuesOf("expect"), exitCode: Number(valuesOf("exit")[0] ?? 0) };
  const last = passages.at(-1);
  if (last?.heading === heading && last.scene === scene) last.blocks.push(whole);
  else passages.push({ heading, scene, blocks: [whole] });
}
