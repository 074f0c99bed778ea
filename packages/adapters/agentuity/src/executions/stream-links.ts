import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { HoldfastError, type OutputStream } from "@holdfast/contract";

/**
 * Where an execution's output is read. The client reads it without its key, so the URL itself says that whoever has it may:
 * it carries a signature of what it leads to, which nobody without the server's secret can make. It leads to that one stream,
 * for as long as the output is kept.
 */
export class StreamLinks {
  readonly #key: Buffer;

  constructor(secret: string = randomBytes(32).toString("hex")) {
    this.#key = createHmac("sha256", secret).update("agentuity stream links").digest();
  }

  /** Behind the adapter's own URL. */
  pathOf(execId: string, stream: OutputStream): string {
    return `/streams/${execId}/${stream}?token=${this.#sign(execId, stream)}`;
  }

  check(execId: string, stream: OutputStream, token: string): void {
    const wanted = Buffer.from(this.#sign(execId, stream));
    const given = Buffer.from(token);
    if (given.length === wanted.length && timingSafeEqual(given, wanted)) return;
    throw new HoldfastError("unauthorized", {
      message: "This URL is not one that was given out for the stream.",
    });
  }

  #sign(execId: string, stream: OutputStream): string {
    return createHmac("sha256", this.#key).update(`${execId}\0${stream}`).digest("base64url");
  }
}
