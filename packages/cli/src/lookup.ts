import { NotFoundError, type Sandbox } from "@holdfast/sdk";
import { type Context, everything } from "./context.ts";

/**
 * A sandbox by name or id. One that failed has given up its name, but is listed under it until it is deleted; where it
 * is the only one, its name still means it.
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

/** The id that a name means; an id means itself, also when the sandbox is gone. */
export const sandboxIdOf = async (context: Context, ref: string): Promise<string> =>
  ref.startsWith("sbx_") ? ref : (await findSandbox(context, ref)).id;

const byIdInstead = (error: NotFoundError): NotFoundError =>
  new NotFoundError({
    ...error,
    message: error.message,
    hint: `${error.hint} For one that failed, use the id shown by 'holdfast ls'.`,
    cause: error.cause,
  });
