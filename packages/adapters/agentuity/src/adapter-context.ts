import { Type } from "@fastify/type-provider-typebox";
import type { RouteContext } from "../../context.ts";
import type { LostAnswers } from "./lost-answers.ts";
import type { SandboxViews } from "./sandbox-views.ts";
import type { StreamLinks } from "./stream-links.ts";

/** What all routes of this client share besides what every route is given. */
export interface Parts extends RouteContext {
  links: StreamLinks;
  lost: LostAnswers;
  views: SandboxViews;
}

export const MOUNTED_AT = "/compat/agentuity";

export const InSandbox = Type.Object({
  id: Type.String({ minLength: 1, maxLength: 64 }),
});

/** Which organization asks. */
export const OrgQuery = { orgId: Type.Optional(Type.String({ maxLength: 256 })) };

/** Every success but a pause. */
export const succeeded = <Data>(data: Data) => ({ success: true as const, data });
