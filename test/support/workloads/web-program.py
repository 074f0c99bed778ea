"""A small web server for tests, run inside sandboxes: web-program.py PORT [first line of the log]."""
import http.server, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/n/"):
            self.answer(b"n:" + path[3:].encode())
        elif path == "/pid":
            self.answer(str(os.getpid()).encode())
        elif path == "/headers":
            self.answer(str(self.headers).encode())
        elif path == "/big":
            self.answer(b"0123456789abcdef" * 524288)
        elif path == "/stream":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for index in range(10_000):
                line = b"line %d\n" % index
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
                time.sleep(0.05)
        elif path == "/login":
            self.answer(b"", 302, location="/n/in", set_cookie="session=1; Path=/; Domain=localhost")
        elif path == "/die":
            os._exit(3)
        elif path == "/silent":
            time.sleep(1000)
        else:
            self.answer(b"path:" + self.path.encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.answer(b"got:" + body)

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

print("listening", flush=True)
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
