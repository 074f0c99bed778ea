import type { RouteOptions } from "fastify";
import { type DescribedRoute, describedRoutes } from "./document.ts";

/** The routes that exist: for the document, and to tell a wrong method from a wrong path and a socket from a request. */
export class RouteTable {
  readonly described: DescribedRoute[] = [];
  readonly #patterns: { pattern: RegExp; methods: readonly string[]; socket: boolean }[] = [];

  add(route: RouteOptions): void {
    this.described.push(...describedRoutes(route));
    const source = route.url
      .replaceAll(/[.+?^${}()|[\]\\]/g, "\\$&")
      .replaceAll(/:\w+/g, "[^/]+")
      .replaceAll("*", ".*");
    const socket = route.config?.socket === true;
    this.#patterns.push({ pattern: new RegExp(`^${source}$`), methods: [route.method].flat(), socket });
  }

  /** The methods that the path of this URL supports; none where there is no such path. */
  methodsOf(url: string): string[] {
    const methods = this.#matching(url).flatMap((route) => route.methods);
    return [...new Set(methods)].sort();
  }

  /** Whether the path of this URL is a WebSocket's. */
  isSocket(url: string): boolean {
    return this.#matching(url).some(({ socket }) => socket);
  }

  #matching(url: string) {
    const path = url.split("?", 1)[0] ?? url;
    return this.#patterns.filter(({ pattern }) => pattern.test(path));
  }
}
