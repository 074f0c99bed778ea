import { createServer } from "node:net";

/** Rejects with the error of `listen` if no server can listen on the address. Releases the port again. */
export async function requireFreePort({ host, port }: { host: string; port: number }): Promise<void> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ host, port }, resolve);
  });
  await new Promise<void>((resolve) => server.close(() => resolve()));
}
