import { type BodyLimits, readWhole } from "./body.ts";
import type { App } from "./context.ts";

/** Bodies are JSON up to a size, or nothing at all; those of another type are refused. */
export function takeJson(app: App, limits: BodyLimits): void {
  const parse = app.getDefaultJsonParser("error", "error");
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("application/json", (request, payload, done) => {
    readWhole(payload, limits).then((body) => {
      if (body.length === 0) done(null, undefined);
      else parse(request, body.toString("utf8"), done);
    }, done);
  });
}
