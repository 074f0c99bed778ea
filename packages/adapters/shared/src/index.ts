export { checker } from "./checked.ts";
export { outputMissing, records } from "./exec-records.ts";
export { imageFor } from "./image-aliases.ts";
export { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "./label-text.ts";
export { sendLines } from "./line-sender.ts";
export { fieldsOf, isAnything, type Known, notSupported, refuseFields } from "./refusals.ts";
export { BODY_MAX_BYTES, once } from "./whole-bodies.ts";
