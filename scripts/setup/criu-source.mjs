import { chownSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { apt, aptInstall } from "./apt.mjs";
import { hasCommand, run } from "./command.mjs";
import { SetupError } from "./say.mjs";

const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/** Packages with the headers that CRIU's build needs. They also install the libraries that the built binary needs. */
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

const SHOWN_LINES = 4;

/**
 * Returns the first error lines of a tool's output, or its last lines if it has none, with passwords in URLs removed.
 */
export function troubleIn(output) {
  const lines = output.trim().split("\n");
  const errors = lines.filter((line) => /^E: |\berror\b|\*\*\*/i.test(line));
  const shown = errors.length > 0 ? errors.slice(0, SHOWN_LINES) : lines.slice(-SHOWN_LINES);
  return shown.join("\n").replace(/:\/\/[^/@\s]+@/g, "://");
}

/**
 * Returns the first repository URL in the output of `apt-get indextargets` that does not refer to a CD-ROM; null if
 * there is none.
 */
const pickMirror = (output) =>
  output.split("\n").find((line) => /^[a-z][a-z0-9+.-]*:\/?\S+$/.test(line) && !line.startsWith("cdrom:")) ??
  null;

/**
 * Returns the name and version of CRIU's source archive among the fetched files, which may include signatures; null if
 * there is none.
 */
function pickArchive(names) {
  for (const name of names) {
    const version = /^criu_(\d[\w.+~-]*)\.orig\.tar\.(?:xz|gz|bz2)$/.exec(name)?.[1];
    if (version !== undefined) return { name, version };
  }
  return null;
}

/**
 * Returns the URL of the mirror from which this machine gets Debian's own packages; null if the distribution is not
 * Debian.
 */
export async function debianMirror() {
  const fields = ["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"];
  const mirror = async () =>
    pickMirror((await run("apt-get", ["indextargets", "--format", "$(REPO_URI)", ...fields])).output);
  const known = await mirror();
  if (known !== null) return known;
  return (await apt(["update"])).ok ? mirror() : null;
}

export async function installBuildPackages() {
  const tools = TOOLS.filter(({ command }) => !hasCommand(command)).map((tool) => tool.package);
  const headers = [];
  for (const name of HEADERS) if (!(await isInstalled(name))) headers.push(name);
  if (tools.length + headers.length === 0) return;
  const failed = await aptInstall([...tools, ...headers]);
  if (failed !== null) throw new SetupError(troubleIn(failed));
}

const isInstalled = async (name) =>
  /^Status: \S+ \S+ installed$/m.test((await run("dpkg-query", ["--status", name])).output);

/**
 * Fetches CRIU's upstream source from another suite of the machine's own mirror, and returns the directory it was
 * unpacked to and its version. apt does the download with a separate configuration, so that the machine's lists and
 * sources stay unchanged. Debian signs the suite, its index contains the archive's checksum, and apt verifies both.
 */
export async function fetchSource(mirror, suite, directory) {
  const places = Object.fromEntries(
    ["parts", "lists", "cache", "fetched", "source"].map((name) => [name, join(directory, name)]),
  );
  for (const place of Object.values(places)) mkdirSync(place, { recursive: true, mode: 0o755 });
  await giveToApt(places.fetched);
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
  must(await apt([...settings, "update"]));
  must(await apt([...settings, "source", "--download-only", "--tar-only", "criu"], { cwd: places.fetched }));
  const archive = pickArchive(readdirSync(places.fetched));
  if (archive === null) throw new SetupError(`apt fetched no source of CRIU from ${suite}`);
  const unpack = ["--extract", "--no-same-owner", "--strip-components=1", "--directory", places.source];
  must(await run("tar", [...unpack, "--file", join(places.fetched, archive.name)]));
  return { source: places.source, version: archive.version };
}

/**
 * Makes apt's unprivileged user the owner of the directory. Apt downloads as that user if the user may write there, and
 * as root otherwise.
 */
async function giveToApt(directory) {
  const { ok, output } = await run("id", ["--user", "_apt"]);
  if (ok) chownSync(directory, Number(output), 0);
}

/**
 * Builds CRIU. The build leaves out GnuTLS, which only migration between machines needs, and ignores compiler warnings.
 */
export async function compile(source) {
  must(
    await run("make", [`-j${availableParallelism()}`, "NO_GNUTLS=1", "WERROR=0", "criu"], { cwd: source }),
  );
  return join(source, "criu", "criu");
}

function must({ ok, output }) {
  if (!ok) throw new SetupError(troubleIn(output));
}
