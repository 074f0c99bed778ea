/** The parts of telemetry that the HTTP layer uses. `telemetry/` implements them. */
import type { LogLine, LogList } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";

/** Metrics of requests, streams and port connections. */
export interface RequestMetrics {
  readonly contentType: string;
  request(method: string, route: string, status: number, ms: number): void;
  /** Counts an error response by its code. */
  failure(code: string): void;
  /** Counts bytes of output written to callers' sockets. */
  streamed(format: string, bytes: number): void;
  /** Counts a port request by its outcome. */
  portRequest(outcome: string): void;
  /**
   * Adds an attached socket to the count. The returned function removes it, and must be called when the socket is
   * closed.
   */
  attach(): () => void;
  render(engine: EngineApi): Promise<string>;
}

/** Filters for log lines. */
export interface LogFilter {
  sandboxId?: string | undefined;
  execId?: string | undefined;
  driveId?: string | undefined;
  requestId?: string | undefined;
  /** Minimum level. */
  level?: LogLine["level"] | undefined;
  /** Text in the line's message, case-insensitive. */
  text?: string | undefined;
  since?: number | undefined;
  until?: number | undefined;
}

export interface LogQuery extends LogFilter {
  cursor?: string | undefined;
  limit: number;
}

/** Reads the server's stored log. */
export interface ServerLogReader {
  /**
   * Returns one page of lines, newest first. If the page has a cursor, older lines were not searched yet, even if the
   * page contains few or no lines. `scrub` removes host paths from a text.
   */
  find(query: LogQuery, scrub: (text: string) => string, signal: AbortSignal): Promise<LogList>;
}
