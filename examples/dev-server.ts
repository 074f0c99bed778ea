/**
 * A dev server with a preview: it runs as a named process, is restarted when it crashes, is shared by a link that needs no API
 * key, and uses no memory while it has no visitors. A visit to the link wakes it.
 *
 *   node examples/dev-server.ts        uses the server on this machine, or HOLDFAST_URL and HOLDFAST_API_KEY
 */
import { Holdfast } from "@holdfast/sdk";

const PORT = 3000;
const PROGRAM = `
import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash": os._exit(1)
        body = open("/tmp/page.txt", "rb").read()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", ${PORT}), Page).serve_forever()
`;

const hf = new Holdfast();
try {
  await using box = await hf.sandboxes.create({ lifecycle: { idleStandbyMs: 60_000 } });
  await box.files.write("/tmp/server.py", PROGRAM);
  await box.files.write("/tmp/page.txt", "first version");
  const web = await box.processes.start("web", "python3 /tmp/server.py", {
    readyWhen: { port: PORT },
    connectBy: { port: PORT, withinMs: 10_000 },
    restart: { on: "always", max: 10, backoffMs: 100 },
  });
  await web.ready();
  const { url, pathUrl, name } = await box.previews.create(PORT, { tokenTtlMs: 3_600_000 });
  console.log(`open ${url.replace(/=.*/, "=…")}`);

  // Requests the page like a browser. Uses `pathUrl`, because this program may be unable to resolve the preview's host name.
  const look = async () => (await fetch(pathUrl)).text();
  console.log(`a visitor sees: ${await look()}`);
  await box.files.write("/tmp/page.txt", "second version");
  console.log(`after an edit: ${await look()}`);

  await box
    .port(PORT)
    .fetch("/crash")
    .catch(() => undefined);
  await web.ready();
  console.log(`after a crash: ${await look()}, run ${(await web.refresh()).runs}`);

  const { status } = await box.standby();
  console.log(`the sandbox: ${status}`);
  console.log(`a visit wakes it: ${await look()}, run ${(await web.refresh()).runs}`);
  await web.ready();

  await box.previews.delete(name);
  console.log(`the link, revoked: ${(await fetch(pathUrl)).status}`);
} finally {
  hf.close();
}
