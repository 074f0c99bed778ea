import { type Static, Type } from "typebox";
import { NAME_PATTERN, PREVIEW_ID_PATTERN, SANDBOX_ID_PATTERN, TOKEN_ID_PATTERN } from "./ids.ts";
import { Nullable, Timestamp } from "./schema.ts";

export const Port = Type.Integer({
  minimum: 1,
  maximum: 65_535,
  description: "a TCP port at which a program of the sandbox listens, on its loopback",
});

const LONGEST_MS = 31_536_000_000;

export const CreatePreview = Type.Object(
  {
    port: Port,
    name: Type.Optional(
      Type.String({
        pattern: NAME_PATTERN,
        description: "a DNS label that no other preview of the sandbox has; made up where absent",
      }),
    ),
    public: Type.Optional(
      Type.Boolean({ description: "whether the port is open without a token; default false" }),
    ),
    ttlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: LONGEST_MS,
        description: "how long it is open; default: as long as the sandbox lives",
      }),
    ),
    tokenTtlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: LONGEST_MS,
        description: "how long the token in this answer is good for; default a day",
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
        description: "how long it is good for; default a day, and never longer than the preview",
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
      "where the port is, with the token where there is one: on a host of its own, so that absolute links work",
  }),
  pathUrl: Type.String({
    description: "the same below a path of this server, for programs that can't resolve that host",
  }),
};

/** What the engine knows of a preview; where it is found is the server's to say. */
export const PreviewInfo = Type.Object(previewFields);
export type PreviewInfo = Static<typeof PreviewInfo>;

export const Preview = Type.Object(
  {
    ...previewFields,
    ...urlFields,
    token: Type.Optional(
      Type.String({ description: "opens this port and nothing else; told once, when it is made" }),
    ),
  },
  { $id: "Preview", title: "Preview", description: "a port of a sandbox that can be reached without a key" },
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
  { ...tokenFields, ...urlFields, token: Type.String({ description: "told once" }) },
  { $id: "PreviewToken", title: "PreviewToken" },
);
export type PreviewToken = Static<typeof PreviewToken>;

export const PreviewTokenList = Type.Object(
  { items: Type.Array(PreviewTokenInfo) },
  { $id: "PreviewTokenList", title: "PreviewTokenList" },
);
export type PreviewTokenList = Static<typeof PreviewTokenList>;
