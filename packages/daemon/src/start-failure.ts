/**
 * The error that the server cannot start. It contains the reason, and a fix for the person who started the server. It
 * is printed without a stack.
 */
export class StartFailure extends Error {
  readonly fix: string;
  constructor(reason: string, fix: string, options: { cause?: unknown } = {}) {
    super(reason, options);
    this.name = "StartFailure";
    this.fix = fix;
  }
}

const FIXES: Readonly<Record<string, string>> = {
  EADDRNOTAVAIL: "Set HOLDFAST_HOST to an address of this machine.",
  EACCES: "Start as root, or set HOLDFAST_DIR and HOLDFAST_PORT to values this user has access to.",
  EPERM: "Start as root.",
  EROFS: "Set HOLDFAST_DIR to a writable directory.",
  ENOSPC: "Free disk space, or set HOLDFAST_DIR to a file system with free space.",
  ENOTDIR: "Set HOLDFAST_DIR to a directory.",
};

/**
 * Fixes for errors that other components throw, by the name of the error's class. They are shown after the error's
 * message, which states the problem.
 */
const NAMED: Readonly<Record<string, string>> = {
  DirectoryHeld: "Stop that server, or set HOLDFAST_DIR to another directory.",
};

/** Converts any error during the start to a reason and a fix. */
export function explain(thrown: unknown): StartFailure {
  if (thrown instanceof StartFailure) return thrown;
  if (!(thrown instanceof Error)) return explain(new Error(String(thrown)));
  const code = "code" in thrown && typeof thrown.code === "string" ? thrown.code : "";
  const own = "fix" in thrown && typeof thrown.fix === "string" ? thrown.fix : undefined;
  if (code === "EADDRINUSE") return portInUse(thrown);
  const fix = own ?? NAMED[thrown.name] ?? FIXES[code];
  return new StartFailure(
    thrown.message,
    fix ?? "Run 'holdfast doctor', or start with HOLDFAST_LOG_LEVEL=debug for more detail.",
    { cause: thrown },
  );
}

function portInUse(error: Error & { address?: unknown; port?: unknown }): StartFailure {
  return new StartFailure(
    `Port ${error.port} on ${error.address} is in use.`,
    "Stop the program that uses it, or set HOLDFAST_PORT to another port (0 for any free port).",
    { cause: error },
  );
}
