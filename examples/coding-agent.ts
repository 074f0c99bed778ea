/**
 * A coding agent's loop: the project is in a drive, each turn edits it and runs its tests in a sandbox, and the sandbox is in
 * standby between turns. The drive outlives the sandbox, so a reviewer can read the result without one.
 *
 *   node examples/coding-agent.ts        uses the server on this machine, or HOLDFAST_URL and HOLDFAST_API_KEY
 */
import { Holdfast } from "@holdfast/sdk";

/** The model's responses, one per turn. */
const TURNS = [
  {
    thought: "Write the test that describes what is wanted.",
    files: {
      "/workspace/test_words.py":
        "from words import count\n\nassert count('a b  a') == {'a': 2, 'b': 1}, count('a b  a')\nassert count('') == {}\nprint('all tests pass')\n",
    },
  },
  {
    thought: "A first try.",
    files: {
      "/workspace/words.py":
        "def count(text):\n    found = {}\n    for word in text.split(' '):\n        found[word] = found.get(word, 0) + 1\n    return found\n",
    },
  },
  {
    thought: "Several spaces are one separator.",
    files: {
      "/workspace/words.py":
        "def count(text):\n    found = {}\n    for word in text.split():\n        found[word] = found.get(word, 0) + 1\n    return found\n",
    },
  },
];

const hf = new Holdfast();
const project = await hf.drives.create({ labels: { example: "coding-agent" } });
try {
  await using box = await hf.sandboxes.create({
    mounts: [{ drive: project.name, path: "/workspace" }],
    lifecycle: { idleStandbyMs: 60_000 },
  });
  let passed = false;
  for (const [turn, { thought, files }] of TURNS.entries()) {
    console.log(`turn ${turn + 1}: ${thought}`);
    for (const [path, content] of Object.entries(files)) await box.files.write(path, content);
    const test = await box.exec("python3 test_words.py", { cwd: "/workspace", timeoutMs: 60_000 });
    passed = test.exitCode === 0;
    console.log(`  exit ${test.exitCode}: ${(test.stdout + test.stderr).trim().split("\n").at(-1)}`);
    if (passed) break;
    // The sandbox uses no memory while the model thinks. The next call wakes it.
    const { status } = await box.standby();
    console.log(`  sandbox: ${status}`);
  }
  console.log(`the drive has ${(await project.files.list("/")).items.map(({ name }) => name).join(", ")}`);
  console.log(passed ? "done: the tests pass" : "given up: the tests fail");
  process.exitCode = passed ? 0 : 1;
} finally {
  await project.delete();
  hf.close();
}
