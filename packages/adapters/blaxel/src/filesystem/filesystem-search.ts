import { type Static, Type } from "@fastify/type-provider-typebox";
import { type FileMatch, HoldfastError } from "@holdfast/contract";
import type { SearchOptions } from "@holdfast/engine";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { CONTEXT_LINES_MAX } from "@holdfast/server/adapter";
import { AtPath, pathOf } from "./filesystem.ts";

/** Directories that are skipped by default, as on the platform. */
const SKIPPED = [
  "node_modules",
  "vendor",
  ".git",
  "dist",
  "build",
  "target",
  "__pycache__",
  ".venv",
  ".next",
  "coverage",
];
const FOUND_MAX = 20;
const LINES_MAX = 100;
/** Maximum number of paths that a search reads before they are filtered by type, hidden names and score. */
const LOOKED_AT = 10_000;

const Found = {
  maxResults: Type.Optional(Type.Integer({ minimum: 0 })),
  patterns: Type.Optional(Type.String()),
  excludeDirs: Type.Optional(Type.String()),
  excludeHidden: Type.Optional(Type.Boolean()),
};
const FindQuery = Type.Object({ ...Found, type: Type.Optional(Type.String()) });
const FuzzyQuery = Type.Object({ ...Found, query: Type.Optional(Type.String()) });
const ContentQuery = Type.Object({
  query: Type.String({ minLength: 1 }),
  caseSensitive: Type.Optional(Type.Boolean()),
  contextLines: Type.Optional(Type.Integer({ minimum: 0, maximum: CONTEXT_LINES_MAX })),
  maxResults: Type.Optional(Type.Integer({ minimum: 0 })),
  filePattern: Type.Optional(Type.String()),
  excludeDirs: Type.Optional(Type.String()),
});

export function searchRoutes(app: App, { engine, callers }: RouteContext): void {
  /** Returns all matches below a directory. Throws if the search stopped before it had read everything. */
  async function search(ref: string, path: string, options: SearchOptions, signal: AbortSignal) {
    const found = await engine.files.search(ref, path, { wake: true, ...options }, signal);
    if (!found.truncated) return found.items;
    const message = `${found.path} contains more than one search covers; search a smaller directory or narrow the query.`;
    throw new HoldfastError("too_large", { message });
  }

  async function named(ref: string, path: string, query: Static<typeof FuzzyQuery>, signal: AbortSignal) {
    const exclude = listOf(query.excludeDirs) ?? SKIPPED;
    const globs = listOf(query.patterns) ?? ["*"];
    const searches = globs.map((name) => search(ref, path, { name, exclude, limit: LOOKED_AT }, signal));
    const all = new Map((await Promise.all(searches)).flat().map((match) => [match.path, match]));
    const isSkipped = ({ kind, name }: FileMatch) => kind === "directory" && exclude.includes(name);
    const isShown = ({ path: at }: FileMatch) =>
      query.excludeHidden === false ||
      !below(path, at)
        .split("/")
        .some((name) => name.startsWith("."));
    return [...all.values()].filter((match) => isShown(match) && !isSkipped(match));
  }

  app.get(
    "/filesystem-find/*",
    { schema: { params: AtPath, querystring: FindQuery } },
    async ({ params, query }, reply) => {
      const root = pathOf(params);
      const wanted = query.type ?? "file";
      if (wanted !== "file" && wanted !== "directory") throw badType(wanted);
      const all = await named(params.name, root, query, callers.signal(reply.raw));
      const matches = all
        .filter((match) => typeOf(match) === wanted)
        .slice(0, query.maxResults === 0 ? undefined : (query.maxResults ?? FOUND_MAX))
        .map((match) => ({ path: below(root, match.path), type: wanted }));
      return { matches, total: matches.length };
    },
  );

  app.get(
    "/filesystem-search/*",
    { schema: { params: AtPath, querystring: FuzzyQuery } },
    async ({ params, query }, reply) => {
      const root = pathOf(params);
      const wanted = query.query;
      if (!wanted) throw noQuery();
      const all = await named(params.name, root, query, callers.signal(reply.raw));
      const matches = all
        .map((match) => ({ path: below(root, match.path), type: typeOf(match) }))
        .map((match) => ({ ...match, score: scoreOf(match.path, wanted) }))
        .filter(({ score }) => score > 0)
        .sort((a, b) => b.score - a.score)
        .slice(0, query.maxResults || FOUND_MAX);
      return { matches, total: matches.length };
    },
  );

  app.get(
    "/filesystem-content-search/*",
    { schema: { params: AtPath, querystring: ContentQuery } },
    async ({ params, query }, reply) => {
      const root = pathOf(params);
      const options = {
        content: query.query,
        name: query.filePattern || undefined,
        ignoreCase: query.caseSensitive !== true,
        contextLines: query.contextLines,
        exclude: listOf(query.excludeDirs) ?? SKIPPED,
        limit: LOOKED_AT,
      };
      const files = await search(params.name, root, options, callers.signal(reply.raw));
      const matches = files
        .flatMap(({ path, lines = [] }) =>
          lines.map(({ line, text, before, after }) => ({
            path: below(root, path),
            line,
            column: columnOf(text, query.query),
            text,
            ...(before && after ? { context: [...before, text, ...after].join("\n") } : {}),
          })),
        )
        .slice(0, query.maxResults || LINES_MAX);
      return { query: query.query, matches, total: matches.length };
    },
  );
}

/** Splits a list at commas. Returns undefined if the list is absent, because an empty list has another meaning. */
const listOf = (text: string | undefined): string[] | undefined =>
  text
    ?.split(",")
    .map((item) => item.trim())
    .filter((item) => item !== "");

const below = (root: string, path: string): string =>
  path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path.replace(/^\//, "");

const typeOf = ({ kind }: FileMatch): "file" | "directory" => (kind === "directory" ? "directory" : "file");

const columnOf = (text: string, query: string): number => text.toLowerCase().indexOf(query.toLowerCase()) + 1;

/**
 * Returns how well a path matches a fuzzy query. The letters of the query must occur in the path in order; the closer
 * they are to each other, the higher is the score. 0 means no match.
 */
function scoreOf(path: string, query: string): number {
  const text = path.toLowerCase();
  let score = 0;
  let at = -1;
  for (const letter of query.toLowerCase()) {
    const next = text.indexOf(letter, at + 1);
    if (next < 0) return 0;
    score += next === at + 1 ? 3 : 1;
    at = next;
  }
  return score;
}

const badType = (type: string): HoldfastError =>
  new HoldfastError("invalid_request", {
    message: `query/type is ${JSON.stringify(type.slice(0, 20))}; allowed values: file, directory.`,
  });

/**
 * The error for a content search. The published clients do not send the search text, so the server can't run the
 * search.
 */
const noQuery = (): HoldfastError =>
  new HoldfastError("invalid_request", {
    message: "query/query is missing: some client versions do not send it. Use fs.find or fs.grep.",
  });
