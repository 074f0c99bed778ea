/**
 * A program, run as root in a sandbox, that replaces the keeper's socket and answers like a keeper with another boot
 * id: hello, ping, an empty list of execs, and a true probe. It records the type of each request.
 */
export const IMPOSTOR = `
import os, socket, struct, sys, threading

PATH = "/.holdfast/control/keeper.sock"
text = lambda value: struct.pack("<I", len(value)) + value

def answer(kind, payload):
    if kind == 1:
        protocol, generation = struct.unpack_from("<IQ", payload)
        return struct.pack("<I", protocol) + text(b"0123456789ab") + text(b"0" * 32) + struct.pack("<QQI", generation, 1, 1052672)
    if kind == 2:
        return payload + struct.pack("<Q", 1)
    if kind == 15:
        return struct.pack("<I", 0)
    if kind == 40:
        root = os.stat("/")
        return struct.pack("<QQQI", root.st_dev, root.st_ino, 1, 1)

def exactly(link, size):
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            sys.exit()
        data += chunk
    return data

def serve(link):
    while True:
        size, ident, kind, _ = struct.unpack("<IIHH", exactly(link, 12))
        payload = exactly(link, size - 8)
        with open("/tmp/heard", "a") as heard:
            heard.write("%d\\n" % kind)
        reply = answer(kind, payload)
        if reply is None:
            reply, kind = struct.pack("<IIQ", 3, 0, 0) + text(b"no"), 0x7fff
        link.sendall(struct.pack("<IIHH", 8 + len(reply), ident, kind | 0x8000, 0) + reply)

os.unlink(PATH)
listener = socket.socket(socket.AF_UNIX)
listener.bind(PATH)
listener.listen(16)
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
`;
