import { type Static, Type } from "typebox";
import { NAME_PATTERN, PREVIEW_ID_PATTERN, SANDBOX_ID_PATTERN, TOKEN_ID_PATTERN } from "./ids.ts";
import { Nullable, Timestamp } from "./schema.ts";

export const Port = Type.Integer({
  minimum: 1,
  maximum: 65_535,
  description: "a TCP port on which a program in the sandbox listens on its loopback interface",
});

const LONGEST_MS = 31_536_000_000;

export const CreatePreview = Type.Object(
  {
    port: Port,
    name: Type.Optional(
      Type.String({
        pattern: NAME_PATTERN,
        description: "a DNS label, unique among the sandbox's previews; generated if absent",
      }),
    ),
    public: Type.Optional(
      Type.Boolean({ description: "whether the port is open without a token; default false" }),
    ),
    ttlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: LONGEST_MS,
        description: "how long the preview is open; default: as long as the sandbox exists",
      }),
    ),
    tokenTtlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: LONGEST_MS,
        description: "how long the returned token is valid; default one day",
      }),
    ),
  },
  { $id: "CreatePreview", title: "CreatePreview", additionalProperties: false },
);
export type CreatePreview = Static<typeof CreatePreview>;

export const CreatePreviewToken = Type.Object(
  {
    ttlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: LONGEST_MS,
        description: "how long the token is valid; default one day, and never longer than the preview",
      }),
    ),
  },
  { $id: "CreatePreviewToken", title: "CreatePreviewToken", additionalProperties: false },
);
export type CreatePreviewToken = Static<typeof CreatePreviewToken>;

const previewFields = {
  id: Type.String({ pattern: PREVIEW_ID_PATTERN }),
  name: Type.String(),
  sandboxId: Type.String({ pattern: SANDBOX_ID_PATTERN }),
  port: Port,
  public: Type.Boolean(),
  createdAt: Timestamp,
  expiresAt: Nullable(Timestamp),
};

const urlFields = {
  url: Type.String({
    description:
      "URL of the port, including the token if there is one. The preview has its own host name, so that absolute links work",
  }),
  pathUrl: Type.String({
    description:
      "the same preview below a path of this server, for clients that cannot resolve that host name",
  }),
};

/** A preview as the engine returns it, without URLs. The server adds them. */
export const PreviewInfo = Type.Object(previewFields);
export type PreviewInfo = Static<typeof PreviewInfo>;

export const Preview = Type.Object(
  {
    ...previewFields,
    ...urlFields,
    token: Type.Optional(
      Type.String({ description: "grants access to this port only; returned once, at creation" }),
    ),
  },
  {
    $id: "Preview",
    title: "Preview",
    description: "a port of a sandbox that can be reached without an API key",
  },
);
export type Preview = Static<typeof Preview>;

export const PreviewList = Type.Object(
  { items: Type.Array(Preview) },
  { $id: "PreviewList", title: "PreviewList" },
);
export type PreviewList = Static<typeof PreviewList>;

const tokenFields = {
  id: Type.String({ pattern: TOKEN_ID_PATTERN }),
  createdAt: Timestamp,
  expiresAt: Timestamp,
  expired: Type.Boolean(),
};

export const PreviewTokenInfo = Type.Object(tokenFields, {
  $id: "PreviewTokenInfo",
  title: "PreviewTokenInfo",
});
export type PreviewTokenInfo = Static<typeof PreviewTokenInfo>;

export const PreviewToken = Type.Object(
  { ...tokenFields, ...urlFields, token: Type.String({ description: "returned once, at creation" }) },
  { $id: "PreviewToken", title: "PreviewToken" },
);
export type PreviewToken = Static<typeof PreviewToken>;

export const PreviewTokenList = Type.Object(
  { items: Type.Array(PreviewTokenInfo) },
  { $id: "PreviewTokenList", title: "PreviewTokenList" },
);
export type PreviewTokenList = Static<typeof PreviewTokenList>;
