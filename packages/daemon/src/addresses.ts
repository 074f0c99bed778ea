import { networkInterfaces } from "node:os";

/** Where a server can be reached. */
export interface Addresses {
  /** The URL for clients on this machine. */
  local: string;
  /** URLs for other machines; empty if the server listens on loopback only. */
  remote: readonly string[];
}

const WILDCARDS: Readonly<Record<string, string>> = { "0.0.0.0": "127.0.0.1", "::": "::1" };

/** Returns the addresses of a server that listens at `host`; `own` are the addresses of this machine's interfaces. */
export function addressesOf(host: string, port: number, own: readonly string[] = ownAddresses()): Addresses {
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

/** Link-local addresses are left out: they are only valid with the name of an interface, which URLs can't contain. */
const ownAddresses = (): string[] =>
  Object.values(networkInterfaces()).flatMap((found) =>
    (found ?? []).map(({ address }) => address).filter((address) => !/^fe80:/i.test(address)),
  );

/** Explains the risk of listening beyond this machine; null if there is none. */
export const exposureWarning = (host: string): string | null =>
  isLoopback(host)
    ? null
    : `Holdfast listens at ${host} in plain HTTP: API keys, which give root access to this machine, and all data travel unencrypted and can be read on the network. Unset HOLDFAST_HOST and put a proxy with TLS in front, or restrict who can reach the port.`;
