import type { App } from "./context.ts";
import { type BodyLimits, readWhole } from "./request-body.ts";

/** Accepts JSON bodies up to a size limit, and empty bodies; refuses other content types. */
export function acceptJson(app: App, limits: BodyLimits): void {
  const parse = app.getDefaultJsonParser("error", "error");
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("application/json", (request, payload, done) => {
    readWhole(payload, limits).then((body) => {
      if (body.length === 0) done(null, undefined);
      else parse(request, body.toString("utf8"), done);
    }, done);
  });
}
