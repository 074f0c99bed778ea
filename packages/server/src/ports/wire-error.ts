import type { Cause, Dispatched, ErrorCode } from "@holdfast/contract";

/** An error as a response: its status, and the contract's error body. */
export interface WireError {
  status: number;
  /** Whether the error is a bug in Holdfast, which is logged with its stack. */
  unexpected: boolean;
  body: {
    error: {
      code: ErrorCode;
      message: string;
      hint: string;
      retryable: boolean;
      dispatched: Dispatched;
      requestId: string;
      sandboxId?: string;
      execId?: string;
      operation?: string;
      floor?: string;
      cause?: Cause;
    };
  };
}
