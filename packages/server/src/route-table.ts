import type { RouteOptions } from "fastify";
import { type DescribedRoute, describedRoutes } from "./document.ts";

/** The routes that exist: for the document, and to tell a wrong method from a wrong path. */
export class RouteTable {
  readonly described: DescribedRoute[] = [];
  readonly #patterns: { pattern: RegExp; methods: readonly string[] }[] = [];

  add(route: RouteOptions): void {
    this.described.push(...describedRoutes(route));
    const source = route.url
      .replaceAll(/[.+?^${}()|[\]\\]/g, "\\$&")
      .replaceAll(/:\w+/g, "[^/]+")
      .replaceAll("*", ".*");
    this.#patterns.push({ pattern: new RegExp(`^${source}$`), methods: [route.method].flat() });
  }

  /** The methods that the path of this URL supports; none where there is no such path. */
  methodsOf(url: string): string[] {
    const path = url.split("?", 1)[0] ?? url;
    const methods = this.#patterns
      .filter(({ pattern }) => pattern.test(path))
      .flatMap((route) => route.methods);
    return [...new Set(methods)].sort();
  }
}
