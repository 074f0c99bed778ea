/** Why memory can't be written or brought back, in words for callers: names no path. The detail is for the operator. */
export class StandbyRefusal extends Error {
  override readonly name = "StandbyRefusal";
  readonly detail: string;
  constructor(message: string, detail = message) {
    super(message);
    this.detail = detail;
  }
}
