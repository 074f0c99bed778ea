/** The server can't start: why, and what the person who started it can do. Printed without a stack. */
export class StartFailure extends Error {
  readonly fix: string;
  constructor(reason: string, fix: string, options: { cause?: unknown } = {}) {
    super(reason, options);
    this.name = "StartFailure";
    this.fix = fix;
  }
}
