/** A small web server that runs both inside a sandbox and on the host: node web-program.mjs PORT. */
import { createServer } from "node:http";

const BIG = Buffer.alloc(64 * 1_048_576, "0123456789abcdef");

createServer((request, response) => {
  if (request.url === "/big") response.end(BIG);
  else if (request.method === "POST") request.pipe(response);
  else response.end("ok");
}).listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
