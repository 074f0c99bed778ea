import { chownSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { apt, aptInstall } from "./apt.mjs";
import { hasCommand, run } from "./command.mjs";
import { SetupError } from "./say.mjs";

const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/** What the build includes and calls. The libraries that the binary then needs come with these. */
const HEADERS = [
  "libcap-dev",
  "libnet1-dev",
  "libnftables-dev",
  "libnl-3-dev",
  "libprotobuf-c-dev",
  "libprotobuf-dev",
  "uuid-dev",
];
const TOOLS = [
  { package: "make", command: "make" },
  { package: "pkg-config", command: "pkg-config" },
  { package: "protobuf-c-compiler", command: "protoc-c" },
  { package: "protobuf-compiler", command: "protoc" },
  { package: "xz-utils", command: "xz" },
];

const TOLD_LINES = 4;

/** Of what a tool said, what went wrong, or else its end; without the passwords that addresses can have in them. */
export function troubleIn(output) {
  const lines = output.trim().split("\n");
  const errors = lines.filter((line) => /^E: |\berror\b|\*\*\*/i.test(line));
  const told = errors.length > 0 ? errors.slice(0, TOLD_LINES) : lines.slice(-TOLD_LINES);
  return told.join("\n").replace(/:\/\/[^/@\s]+@/g, "://");
}

/** From one address per line, and what apt says between them, the first over which more than a disc's packages are had. */
export const pickMirror = (output) =>
  output.split("\n").find((line) => /^[a-z][a-z0-9+.-]*:\/?\S+$/.test(line) && !line.startsWith("cdrom:")) ??
  null;

/** The version of the one archive among the files that were fetched; signatures may lie beside it. */
export function pickArchive(names) {
  for (const name of names) {
    const version = /^criu_(\d[\w.+~-]*)\.orig\.tar\.(?:xz|gz|bz2)$/.exec(name)?.[1];
    if (version !== undefined) return { name, version };
  }
  return null;
}

/** Where this machine gets Debian's own packages from; null where it is not Debian. */
export function debianMirror() {
  const fields = ["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"];
  const mirror = () =>
    pickMirror(run("apt-get", ["indextargets", "--format", "$(REPO_URI)", ...fields]).output);
  const known = mirror();
  if (known !== null) return known;
  return apt(["update"]).ok ? mirror() : null;
}

export function installBuildPackages() {
  const tools = TOOLS.filter(({ command }) => !hasCommand(command)).map((tool) => tool.package);
  const headers = HEADERS.filter((name) => !isInstalled(name));
  if (tools.length + headers.length === 0) return;
  const failed = aptInstall([...tools, ...headers]);
  if (failed !== null) throw new SetupError(troubleIn(failed));
}

const isInstalled = (name) =>
  /^Status: \S+ \S+ installed$/m.test(run("dpkg-query", ["--status", name]).output);

/**
 * Fetches the source as its authors released it from another suite of the machine's own mirror, and gives where it was
 * unpacked. apt does it, under a configuration of its own, so that the machine's lists and sources stay as they are:
 * the suite is signed by Debian, its index names the archive's checksum, and apt verifies both.
 */
export function fetchSource(mirror, suite, directory) {
  const places = Object.fromEntries(
    ["parts", "lists", "cache", "fetched", "source"].map((name) => [name, join(directory, name)]),
  );
  for (const place of Object.values(places)) mkdirSync(place, { recursive: true, mode: 0o755 });
  giveToApt(places.fetched);
  const list = join(directory, "sources.list");
  const signed = existsSync(KEYRING) ? `[signed-by=${KEYRING}] ` : "";
  writeFileSync(list, `deb-src ${signed}${mirror} ${suite} main\n`);
  const settings = [
    `Dir::Etc::SourceList=${list}`,
    `Dir::Etc::SourceParts=${places.parts}`,
    `Dir::State::Lists=${places.lists}`,
    `Dir::Cache=${places.cache}`,
    "APT::Update::Error-Mode=any",
    "Acquire::http::Timeout=20",
    "Acquire::https::Timeout=20",
  ].flatMap((setting) => ["-o", setting]);
  must(apt([...settings, "update"]));
  must(apt([...settings, "source", "--download-only", "--tar-only", "criu"], { cwd: places.fetched }));
  const archive = pickArchive(readdirSync(places.fetched));
  if (archive === null) throw new SetupError(`apt fetched no source of CRIU from ${suite}`);
  const unpack = ["--extract", "--no-same-owner", "--strip-components=1", "--directory", places.source];
  must(run("tar", [...unpack, "--file", join(places.fetched, archive.name)]));
  return { source: places.source, version: archive.version };
}

/** apt downloads as a user without rights where that user may write, and as root where not. */
function giveToApt(directory) {
  const { ok, output } = run("id", ["--user", "_apt"]);
  if (ok) chownSync(directory, Number(output), 0);
}

/** Without what only migration between machines needs, and whatever this compiler warns of. */
export function compile(source) {
  must(run("make", [`-j${availableParallelism()}`, "NO_GNUTLS=1", "WERROR=0", "criu"], { cwd: source }));
  return join(source, "criu", "criu");
}

function must({ ok, output }) {
  if (!ok) throw new SetupError(troubleIn(output));
}
