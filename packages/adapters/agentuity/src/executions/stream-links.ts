import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { HoldfastError, type OutputStream } from "@holdfast/contract";

/**
 * URLs for reading an execution's output. The client reads them without its key, so the URL itself grants access: it
 * contains a signature of the execution and its output stream, which can only be produced with the server's secret. A
 * URL grants access to one output stream, as long as the output is retained.
 */
export class StreamLinks {
  readonly #key: Buffer;

  constructor(secret: string = randomBytes(32).toString("hex")) {
    this.#key = createHmac("sha256", secret).update("agentuity stream links").digest();
  }

  /** Path relative to the adapter's base URL. */
  pathOf(execId: string, stream: OutputStream): string {
    return `/streams/${execId}/${stream}?token=${this.#sign(execId, stream)}`;
  }

  check(execId: string, stream: OutputStream, token: string): void {
    const wanted = Buffer.from(this.#sign(execId, stream));
    const given = Buffer.from(token);
    if (given.length === wanted.length && timingSafeEqual(given, wanted)) return;
    throw new HoldfastError("unauthorized", {
      message: "The URL's signature is not valid for this stream.",
    });
  }

  #sign(execId: string, stream: OutputStream): string {
    return createHmac("sha256", this.#key).update(`${execId}\0${stream}`).digest("base64url");
  }
}
