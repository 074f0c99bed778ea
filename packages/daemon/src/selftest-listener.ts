/**
 * Port on which the self-test's program listens in the sandbox.
 */
export const PORT = 8765;

/**
 * A script that starts a listener with the first interpreter that the image has. Every interpreter's listener answers
 * each request with the same word.
 */
export const LISTENER = `
if command -v perl; then exec perl -MIO::Socket::INET -e '
  $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => ${PORT}, Listen => 8) or die;
  while ($c = $s->accept) {
    while (defined($l = <$c>) && $l =~ /\\S/) {}
    print $c "HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nserved"; close $c;
  }'
fi
if command -v node; then exec node -e '
  require("http").createServer((_, answer) => answer.end("served")).listen(${PORT}, "127.0.0.1")'
fi
command -v python3 && exec python3 -c '
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200); self.end_headers(); self.wfile.write(b"served")
http.server.HTTPServer(("127.0.0.1", ${PORT}), Answer).serve_forever()'
exit 127
`;
