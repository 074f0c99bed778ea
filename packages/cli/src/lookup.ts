import { NotFoundError, type Sandbox } from "@holdfast/sdk";
import { type Context, everything } from "./context.ts";

/**
 * Finds a sandbox by name or id. A failed sandbox no longer occupies its name, so the server does not find it by name.
 * If no other sandbox has the name, and exactly one failed sandbox is listed under it, returns that one.
 */
export async function findSandbox(context: Context, ref: string): Promise<Sandbox> {
  const { signal } = context.interruption;
  const { sandboxes } = context.client();
  try {
    return await sandboxes.get(ref, { signal });
  } catch (error) {
    if (!(error instanceof NotFoundError) || error.code !== "sandbox_not_found") throw error;
    const failed = await everything((page) => sandboxes.list({ status: ["failed"], signal, ...page }));
    const [only, ...others] = failed.filter(({ name }) => name === ref);
    if (only === undefined || others.length > 0) throw byIdInstead(error);
    return await sandboxes.get(only.id, { signal });
  }
}

/** Resolves a name to an id. An id is returned unchanged, even if the sandbox is deleted. */
export const sandboxIdOf = async (context: Context, ref: string): Promise<string> =>
  ref.startsWith("sbx_") ? ref : (await findSandbox(context, ref)).id;

const byIdInstead = (error: NotFoundError): NotFoundError =>
  new NotFoundError({
    ...error,
    message: error.message,
    hint: `${error.hint} For a failed sandbox, use the id shown by 'holdfast ls'.`,
    cause: error.cause,
  });
