import { type Static, Type } from "typebox";
import { List, OneOf, Timestamp } from "./schema.ts";

export const Image = Type.Object(
  {
    name: Type.String(),
    kind: OneOf(["host", "imported"]),
    fingerprint: Type.String({ description: "changes when the content changes" }),
    createdAt: Timestamp,
    sizeBytes: Type.Integer(),
    files: Type.Integer(),
  },
  { $id: "Image", title: "Image" },
);
export type Image = Static<typeof Image>;

export const ImageList = List(Image, "ImageList");
export type ImageList = Static<typeof ImageList>;
