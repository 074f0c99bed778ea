import { networkInterfaces } from "node:os";

/** Where a server can be reached. */
export interface Addresses {
  /** The URL for clients on this machine. */
  local: string;
  /** URLs for other machines; empty if the server listens on loopback only. */
  remote: readonly string[];
}

const WILDCARDS: Readonly<Record<string, string>> = { "0.0.0.0": "127.0.0.1", "::": "::1" };

/** Returns the addresses of a server that listens at `given`; `own` are the addresses of this machine's interfaces. */
export function addressesOf(given: string, port: number, own: readonly string[] = ownAddresses()): Addresses {
  const host = plainHost(given);
  const local = urlOf(WILDCARDS[host] ?? host, port);
  if (isLoopback(host)) return { local, remote: [] };
  if (WILDCARDS[host] === undefined) return { local, remote: [local] };
  const reachable = own.filter(
    (address) => !isLoopback(address) && (host === "::" || !address.includes(":")),
  );
  return { local, remote: reachable.map((address) => urlOf(address, port)) };
}

const urlOf = (host: string, port: number): string =>
  `http://${host.includes(":") ? `[${host}]` : host}:${port}`;

const isLoopback = (host: string): boolean =>
  host === "localhost" || host === "::1" || /^127\.\d+\.\d+\.\d+$/.test(host);

/**
 * Returns the usual form of an address: the system also accepts "0" for 0.0.0.0, and "127.1" for 127.0.0.1. A name stays
 * as it is.
 */
function plainHost(given: string): string {
  const url = `http://${given.includes(":") ? `[${given}]` : given}`;
  return URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, "$1") : given;
}

/** Link-local addresses are left out: they need a zone, which URLs can't have. */
const ownAddresses = (): string[] =>
  Object.values(networkInterfaces()).flatMap((found) =>
    (found ?? []).map(({ address }) => address).filter((address) => !/^fe80:/i.test(address)),
  );

/** Explains the risk of listening beyond this machine; null if there is none. */
export const exposureWarning = (host: string): string | null =>
  isLoopback(plainHost(host))
    ? null
    : `Holdfast listens at ${host} in plain HTTP: API keys, which give root access to this machine, and all data travel unencrypted and can be read on the network. Unset HOLDFAST_HOST and put a proxy with TLS in front, or restrict who can reach the port.`;
