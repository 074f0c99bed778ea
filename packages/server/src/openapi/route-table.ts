import type { RouteOptions } from "fastify";
import { type DescribedRoute, describedRoutes } from "./document.ts";

/**
 * All registered routes. The API document, the distinction between a wrong method and a wrong path, and the recognition
 * of WebSocket paths are based on them.
 */
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

  /** Returns the methods that the path of this URL supports; empty if the path does not exist. */
  methodsOf(url: string): string[] {
    const methods = this.#matching(url).flatMap((route) => route.methods);
    return [...new Set(methods)].sort();
  }

  /** Returns whether the path of this URL is that of a WebSocket route. */
  isSocket(url: string): boolean {
    return this.#matching(url).some(({ socket }) => socket);
  }

  #matching(url: string) {
    const path = url.split("?", 1)[0] ?? url;
    return this.#patterns.filter(({ pattern }) => pattern.test(path));
  }
}
