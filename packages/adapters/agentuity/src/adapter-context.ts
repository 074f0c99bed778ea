import { Type } from "@fastify/type-provider-typebox";
import type { RouteContext } from "@holdfast/server/adapter";
import type { StreamLinks } from "./executions/stream-links.ts";
import type { LostAnswers } from "./lost-answers.ts";
import type { SandboxViews } from "./sandboxes/sandbox-views.ts";

/** The dependencies and state that the routes of this adapter share, in addition to the server's route context. */
export interface AdapterContext extends RouteContext {
  links: StreamLinks;
  lost: LostAnswers;
  views: SandboxViews;
}

export const MOUNTED_AT = "/compat/agentuity";

export const InSandbox = Type.Object({
  id: Type.String({ minLength: 1, maxLength: 64 }),
});

/** The query parameter that names the caller's organization. */
export const OrgQuery = { orgId: Type.Optional(Type.String({ maxLength: 256 })) };

/** Builds the body of a successful response. Only the response to a pause has another form. */
export const succeeded = <Data>(data: Data) => ({ success: true as const, data });
