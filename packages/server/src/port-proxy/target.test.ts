import { expect, test } from "vitest";
import { presented, tokenPlaces } from "./credentials.ts";
import { requestHeaders, responseHeaders, restrictCookie } from "./headers.ts";
import { buildPreviewUrls } from "./preview-urls.ts";
import { targetOf } from "./target.ts";

const ID = "sbx_0123456789abcdef";
const TOKEN = `hfp_0123456789abcdef_${"A".repeat(43)}`;

test.each<[host: string, url: string, wanted: object | null]>([
  [`3000-${ID}.localhost:4750`, "/a?b=c", { via: "host", ref: ID, port: 3000, path: "/a?b=c" }],
  [`3000-${ID.toUpperCase()}.LOCALHOST`, "/", { via: "host", ref: ID, port: 3000, path: "/" }],
  ["8080-web-1.localhost", "/", { via: "host", ref: "web-1", port: 8080, path: "/" }],
  // Every path at a port's host belongs to the program.
  [`3000-${ID}.localhost`, "/v1/stats", { via: "host", ref: ID, port: 3000, path: "/v1/stats" }],
  [`3000-${ID}.localhost`, "/../v1/stats", { via: "host", ref: ID, port: 3000, path: "/../v1/stats" }],
  [`3000-${ID}.localhost`, "//v1/stats", { via: "host", ref: ID, port: 3000, path: "//v1/stats" }],
  [
    `3000-${ID}.localhost`,
    "http://127.0.0.1/v1/stats",
    { via: "host", ref: ID, port: 3000, path: "/v1/stats" },
  ],
  [`3000-${ID}.localhost`, "http://127.0.0.1", { via: "host", ref: ID, port: 3000, path: "/" }],
  [`3000-${ID}.localhost`, "*", { via: "host", ref: ID, port: 3000, path: "*" }],
  [`0-${ID}.localhost`, "/", null],
  [`65536-${ID}.localhost`, "/", null],
  [`3000-${ID}.localhost.evil.example`, "/", null],
  [`3000-${ID}.elsewhere`, "/", null],
  ["localhost:4750", "/v1/stats", null],
  ["127.0.0.1", `/preview/${TOKEN}`, { via: "preview", by: TOKEN, path: "/", prefix: `/preview/${TOKEN}` }],
  [
    "127.0.0.1",
    `/preview/${TOKEN}/x?y`,
    { via: "preview", by: TOKEN, path: "/x?y", prefix: `/preview/${TOKEN}` },
  ],
  ["127.0.0.1", `/preview/${TOKEN}/../../v1/stats`, { via: "preview", path: "/../../v1/stats" }],
  ["127.0.0.1", "/preview/other/x", { via: "preview", by: "other", path: "/x" }],
  ["127.0.0.1", "/preview/", { via: "preview", by: "", path: "/" }],
  ["127.0.0.1", "/preview", null],
  ["127.0.0.1", "/previews/other", null],
  ["127.0.0.1", "/v1/sandboxes/demo/ports/80", { via: "path", ref: "demo", port: 80, path: "/" }],
  ["127.0.0.1", "/v1/sandboxes/demo/ports/80?a", { via: "path", path: "/?a" }],
  ["127.0.0.1", "/v1/sandboxes/demo/ports/80/%2e%2e/a%2Fb", { via: "path", path: "/%2e%2e/a%2Fb" }],
  ["127.0.0.1", "/v1/sandboxes/demo/ports/99999/", null],
  ["127.0.0.1", "/v1/sandboxes/a%2Fb/ports/80/", null],
  ["127.0.0.1", "/v1/sandboxes/%zz/ports/80/", null],
])("%s %s", (host, url, wanted) => {
  const target = targetOf(host, url, "localhost");
  if (wanted === null) expect(target).toBeNull();
  else expect(target).toMatchObject(wanted);
});

test("port hosts are below the configured domain, and no other", () => {
  expect(targetOf("80-web.preview.example.com", "/", "preview.example.com")).toMatchObject({ ref: "web" });
  expect(targetOf("80-web.localhost", "/", "preview.example.com")).toBeNull();
  expect(targetOf("80-webXpreview.example.com", "/", "preview.example.com")).toBeNull();
});

test("tokens are removed from a request wherever they are, and all else stays unchanged", () => {
  const adapter = { name: "other", routes: () => {}, previewTokens: { parameters: ["other_token"] } };
  const given = presented(
    "/a%20b?x=1&holdfast_token=one&y=%41&other_token=two&",
    { cookie: "a=b; holdfast_preview=three; c=d", "x-holdfast-preview-token": "four" },
    tokenPlaces([adapter]),
  );
  expect(given).toEqual({
    tokens: ["one", "two", "four"],
    cookieTokens: ["three"],
    isInUrl: true,
    path: "/a%20b?x=1&y=%41&",
    cookie: "a=b; c=d",
    headers: ["x-holdfast-preview-token"],
  });
  expect(presented("/a?holdfast_token=one", {})).toMatchObject({ path: "/a", cookie: undefined });
  expect(presented("/a?b", { cookie: "holdfast_preview=x" })).toMatchObject({ path: "/a?b", cookie: null });
  expect(presented("/a?holdfast_tokens=1&xholdfast_token=2", {})).toMatchObject({ tokens: [] });
});

const passage = {
  host: "localhost:3000",
  withheld: new Set(["authorization"]),
  forwarded: { address: "192.0.2.1", host: "example.com", protocol: "https", prefix: "" },
};

test("hop-by-hop headers and credentials for this server are not passed on", () => {
  const raw = [
    "Host",
    "a",
    "Connection",
    "close, X-Own",
    "X-Own",
    "1",
    "Authorization",
    "Bearer k",
    "Accept",
    "x",
  ];
  const more = [
    "Accept",
    "y",
    "Keep-Alive",
    "1",
    "TE",
    "trailers",
    "Expect",
    "100-continue",
    "X-Forwarded-For",
    "lie",
  ];
  expect(requestHeaders([...raw, ...more], passage)).toEqual([
    ["host", "localhost:3000"],
    ["Accept", "x"],
    ["Accept", "y"],
    ["x-forwarded-for", "192.0.2.1"],
    ["x-forwarded-host", "example.com"],
    ["x-forwarded-proto", "https"],
  ]);
});

test("secrets in headers that browsers and pages add are not passed on", () => {
  const passedOn = (...raw: string[]) => requestHeaders(raw, passage).slice(1, -3);
  expect(passedOn("Referer", `http://a/x?holdfast_token=${TOKEN}`)).toEqual([]);
  expect(passedOn("Referer", "http://a/x?token=1")).toEqual([["Referer", "http://a/x?token=1"]]);
  const name = "Sec-WebSocket-Protocol";
  expect(passedOn(name, "holdfast.key.aGY, chat, v2")).toEqual([[name, "chat, v2"]]);
  expect(passedOn(name, "holdfast.key.aGY")).toEqual([]);
});

test("a body has one length: a chunked body stays chunked", () => {
  const raw = ["Transfer-Encoding", "chunked", "Content-Length", "5"];
  const names = requestHeaders(raw, passage).map(([name, value]) => `${name}: ${value}`);
  expect(names).toContain("transfer-encoding: chunked");
  expect(names.join()).not.toMatch(/content-length/i);
});

test("framing headers cannot be declared hop-by-hop", () => {
  const raw = ["Connection", "content-length, x-own", "Content-Length", "5", "X-Own", "1"];
  const names = requestHeaders(raw, passage).map(([name]) => name.toLowerCase());
  expect(names).toContain("content-length");
  expect(names).not.toContain("x-own");
});

test("a program cannot imitate this server, nor affect its whole origin", () => {
  const raw = ["X-Holdfast-Error", "port_cut", "Clear-Site-Data", '"*"', "A", "b"];
  const names = (prefix: string) =>
    responseHeaders(raw, { prefix, port: 1 }).map((each) => each.toLowerCase());
  expect(names("")).toEqual(["clear-site-data", '"*"', "a", "b"]);
  expect(names("/p").slice(0, 2)).toEqual(["a", "b"]);
});

test("locations and cookies of a program are moved below its path", () => {
  const at = { prefix: "/p", port: 3000 };
  const moved = (location: string) => responseHeaders(["Location", location], at)[1];
  expect(moved("/login?x")).toBe("/p/login?x");
  expect(moved("http://localhost:3000/login")).toBe("/p/login");
  expect(moved("http://localhost:3000")).toBe("/p/");
  expect(moved("http://localhost:30001/x")).toBe("http://localhost:30001/x");
  expect(moved("//example.com/x")).toBe("//example.com/x");
  expect(moved("relative")).toBe("relative");
  expect(restrictCookie("a=b; Path=/x; Domain=example.com; HttpOnly", "/p")).toBe("a=b; HttpOnly; Path=/p/x");
  expect(restrictCookie("a=b", "/p")).toBe("a=b; Path=/p/");
  expect(restrictCookie("a=b; Domain=localhost; Path=/x", "")).toBe("a=b; Path=/x");
});

test("a page below a path of this server cannot act with its origin; a page on its own host is unrestricted", () => {
  expect(responseHeaders(["A", "b"], { prefix: "/p", port: 1 }).join()).toContain("sandbox allow-scripts");
  expect(responseHeaders(["A", "b"], { prefix: "", port: 1 })).toEqual(["A", "b"]);
});

test("a preview is found on its own host and below a path", () => {
  const preview = { id: "prv_0123456789abcdef", sandboxId: ID, port: 3000 };
  const site = { protocol: "http", host: "127.0.0.1:4750" } as const;
  expect(buildPreviewUrls(preview, { token: TOKEN, site, domain: "localhost" })).toEqual({
    url: `http://3000-${ID}.localhost:4750/?holdfast_token=${TOKEN}`,
    pathUrl: `http://127.0.0.1:4750/preview/${TOKEN}/`,
  });
  const secure = { protocol: "https", host: "api.example.com" } as const;
  expect(buildPreviewUrls(preview, { token: null, site: secure, domain: "preview.example.com" })).toEqual({
    url: `https://3000-${ID}.preview.example.com/`,
    pathUrl: `https://api.example.com/preview/${preview.id}/`,
  });
});
