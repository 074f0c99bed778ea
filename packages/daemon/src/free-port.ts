import { createServer } from "node:net";

/**
 * Checks that a server can listen on the address: listens there and closes the socket again. Rejects with the error of
 * `listen` if that fails.
 */
export async function requireFreePort({ host, port }: { host: string; port: number }): Promise<void> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ host, port }, resolve);
  });
  await new Promise<void>((resolve) => server.close(() => resolve()));
}
