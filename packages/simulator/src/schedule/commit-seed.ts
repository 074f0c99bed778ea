import { execFileSync } from "node:child_process";

/** The first seed of a run, and a text that says where the seed comes from. */
interface FirstSeed {
  seed: number;
  from: string;
}

/** Environment variable that replaces the commit's seed, to repeat the run of another commit. */
const VARIABLE = "HOLDFAST_SIMULATION_SEED";
/** The seed if there is no commit, as in an unpacked archive. */
const NO_COMMIT: FirstSeed = { seed: 1, from: "there is no commit" };
const HEX_DIGITS = 7;
/**
 * Distance between the first seeds of two commits with successive hashes. A run uses consecutive seeds, so the runs of
 * two commits share no seed if each has at most this many schedules.
 */
const APART = 10_000;

/** Derives a seed from the hash of the current commit, so that every commit is tested with other schedules. */
export function seedOfCommit(env: NodeJS.ProcessEnv = process.env): FirstSeed {
  const given = env[VARIABLE];
  if (given !== undefined && given !== "") {
    const seed = Number(given);
    if (!Number.isSafeInteger(seed) || seed < 0) throw new Error(`${VARIABLE} takes a whole number`);
    return { seed, from: VARIABLE };
  }
  const commit = currentCommit();
  return commit === null ? NO_COMMIT : { seed: seedOf(commit), from: `commit ${commit.slice(0, 12)}` };
}

/** The seed of a commit, from the beginning of its hash. */
export const seedOf = (commit: string): number => Number.parseInt(commit.slice(0, HEX_DIGITS), 16) * APART;

function currentCommit(): string | null {
  try {
    const commit = execFileSync("git", ["rev-parse", "HEAD"], {
      cwd: import.meta.dirname,
      encoding: "utf8",
      stdio: ["ignore", "pipe", "ignore"],
    }).trim();
    return /^[0-9a-f]{40,}$/.test(commit) ? commit : null;
  } catch {
    return null;
  }
}
