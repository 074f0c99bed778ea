/** The server can't start: why, and what the person who started it can do. Printed without a stack. */
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
  EACCES: "Start as root, or set HOLDFAST_DIR and HOLDFAST_PORT to what this user may use.",
  EPERM: "Start as root.",
  EROFS: "Set HOLDFAST_DIR to a directory that can be written.",
  ENOSPC: "Free disk space, or set HOLDFAST_DIR to a file system that has some.",
  ENOTDIR: "Set HOLDFAST_DIR to a directory.",
};

/** Errors of other parts that say in their message what is wrong, by name. */
const NAMED: Readonly<Record<string, string>> = {
  DirectoryHeld: "Stop that server, or set HOLDFAST_DIR to another directory.",
  NewerDatabase: "Start the newer version, or set HOLDFAST_DIR to another directory.",
};

/** Whatever kept the server from starting, in words for the person who started it. */
export function explain(thrown: unknown): StartFailure {
  if (thrown instanceof StartFailure) return thrown;
  if (!(thrown instanceof Error)) return explain(new Error(String(thrown)));
  const code = "code" in thrown && typeof thrown.code === "string" ? thrown.code : "";
  const own = "fix" in thrown && typeof thrown.fix === "string" ? thrown.fix : undefined;
  if (code === "EADDRINUSE") return portInUse(thrown);
  const fix = own ?? NAMED[thrown.name] ?? FIXES[code];
  return new StartFailure(
    thrown.message,
    fix ?? "Run 'holdfast doctor'; with HOLDFAST_LOG_LEVEL=debug the log says more.",
    { cause: thrown },
  );
}

function portInUse(error: Error & { address?: unknown; port?: unknown }): StartFailure {
  return new StartFailure(
    `Port ${error.port} on ${error.address} is in use.`,
    "Stop what uses it, or set HOLDFAST_PORT to another port (0 for any free one).",
    { cause: error },
  );
}
