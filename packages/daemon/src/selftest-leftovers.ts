import { randomText } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";

/** Everything that the self-test creates has this label and a name of this form; nothing else has both. */
export const SELF_TEST_LABELS: Readonly<Record<string, string>> = { purpose: "self-test" };
const NAME = /^selftest-[a-z0-9]{8}$/;
export const selfTestName = (): string => `selftest-${randomText(8)}`;

/**
 * Time to live of the self-test's sandboxes. The self-test takes seconds, so only a sandbox that it leaves behind
 * reaches this age. That sandbox then ends, even if no server runs.
 */
export const SELF_TEST_TTL_MS = 600_000;

/** Maximum number of leftovers of each kind that one start removes. */
const LEFTOVERS_MAX = 100;

/**
 * Finds what the self-test of a killed server left behind, and returns a function that removes it. Must be called when
 * a server starts, before its own self-test. If a removal fails, the failure is only logged, because the sandboxes also
 * have a TTL.
 */
export async function findSelfTestLeftovers(
  { sandboxes, drives }: Pick<EngineApi, "sandboxes" | "drives">,
  log: Log,
): Promise<(signal: AbortSignal) => Promise<void>> {
  const filter = { labels: { ...SELF_TEST_LABELS }, limit: LEFTOVERS_MAX };
  const isLeft = ({ name }: { name: string }) => NAME.test(name);
  const left = {
    sandboxes: (await sandboxes.list(filter)).items.filter(isLeft),
    drives: (await drives.list(filter)).items.filter(isLeft),
  };
  return async (signal) => {
    const remove = async (what: Record<string, string>, removal: () => Promise<unknown>) => {
      try {
        await removal();
        log.info(what, "removed a leftover of an interrupted self-test");
      } catch (error) {
        if (!signal.aborted) log.warn({ ...what, err: error }, "could not remove a leftover of a self-test");
      }
    };
    for (const { id } of left.sandboxes)
      await remove({ sandbox: id }, () => sandboxes.remove(id, { graceMs: 0, signal }));
    for (const { id } of left.drives)
      await remove({ drive: id }, () => drives.remove(id, { force: true, signal }));
  };
}
