"""`python -m sglang.launch_server` as tests need it: joins, waits at the gate, answers, drains. Answers are made up.

Faults for tests come from a file `fault` in the rank's folder's parent, or in the home folder (`die-joining`,
`die-loading`, `hang-joining`, `no-proof`), followed by the rank that shall have it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONTEXT = 2048
NOTICE_S = 0.3
"""gloo notices a dead peer within a second."""
PAUSE_S = float(os.environ.get("STANDIN_PAUSE_S", "0.2"))


def say(text: str) -> None:
    """As SGLang writes it: time and rank first."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stdout.write(f"[{stamp} TP{Api.rank}] {text}\n")
    sys.stdout.flush()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model-path", "served-model-name", "dist-init-addr", "host", "json-model-override-args"):
        parser.add_argument(f"--{name}")
    for name in ("tp", "nnodes", "node-rank", "gated-launch-port", "port"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_known_args()[0]


def fault(rank: int) -> str:
    # a container sees its own rank's folder and the node's cache, which is its home
    for place in (Path(os.environ["SPARKYARD_RANK_SPEC"]).parent.parent, Path.home()):
        try:
            word, _, number = (place / "fault").read_text().strip().partition(" ")
        except OSError:
            continue
        return word if int(number) == rank else ""
    return ""


def prove(spec: dict, rank: int) -> None:
    engram = spec["plugin"]["engram"]
    proof = {
        "schema": "sparkyard/plugin-proof/v1",
        "rank": rank,
        "tp": spec["tp"],
        "pid": os.getpid(),
        "engram": {**engram, "store_id": Path(engram["store"]).name},
        "padded": 0,
    }
    path = Path(spec["directory"]) / "proof.json"
    path.with_suffix(".tmp").write_text(json.dumps(proof))
    path.with_suffix(".tmp").replace(path)


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ready = False
    rank = 0
    model = ""
    key = ""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self) -> bool:
        """As SGLang with a key: whoever asks the API without it gets 401."""
        if not self.key or self.headers.get("Authorization", "") == f"Bearer {self.key}":
            return False
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.answer(401, {"error": "Unauthorized"})
        return True

    def do_GET(self) -> None:
        if self.path.startswith("/v1/") and self.refused():
            return
        if self.path == "/health" or (self.path == "/ready" and self.rank == 0):
            self.answer(200 if self.ready else 503, {})
        elif self.path == "/v1/models" and self.rank == 0:
            self.answer(200, {"data": [{"id": self.model, "max_model_len": CONTEXT}]})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        if self.refused():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/v1/completions" and len(body["prompt"].split()) > CONTEXT:
            self.answer(400, {"message": "too long"})
        elif self.path == "/v1/completions" and body.get("stream"):
            chunks = b"".join(b'data: {"choices":[{"text":"w"}]}\n\n' for _ in range(body["max_tokens"]))
            self.answer(200, chunks + b"data: [DONE]\n\n", "text/event-stream")
        elif self.path == "/v1/completions":
            tokens = body["max_tokens"]
            self.answer(200, {"choices": [{"text": "w " * tokens}], "usage": {"completion_tokens": tokens}})
        elif self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": "w"}
            self.answer(200, {"choices": [{"message": message}], "usage": {"completion_tokens": 1}})
        else:
            self.answer(404, {})


class Gate(BaseHTTPRequestHandler):
    opened = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.opened.set()


def main() -> None:
    args = options()
    rank, size = args.node_rank, args.nnodes
    spec = json.loads(Path(os.environ["SPARKYARD_RANK_SPEC"]).read_text())
    Api.rank, Api.model = rank, args.served_model_name
    if key_file := spec["plugin"].get("settings", {}).get("api_key_file"):
        Api.key = Path(key_file).read_text().strip()
        say(f"server_args=ServerArgs(api_key='{Api.key}', host='127.0.0.1')")  # as SGLang prints them
        say(f"a line that holds {Api.key} in no known form")
    host, _, port = args.dist_init_addr.rpartition(":")
    say(f"stand-in rank {rank} of {size} starts")
    time.sleep(PAUSE_S)
    match fault(rank):
        case "die-joining":
            raise SystemExit("stand-in: injected death before joining")
        case "hang-joining":
            time.sleep(3600)
    if rank == 0:
        lead(args, spec, host, int(port), size)
    else:
        follow(args, spec, host, int(port), rank)


def lead(args: argparse.Namespace, spec: dict, host: str, port: int, size: int) -> None:
    meeting = socket.create_server((host, port))
    peers = [meeting.accept()[0] for _ in range(size - 1)]
    meeting.close()
    gate = ThreadingHTTPServer((args.host, args.gated_launch_port), Gate)
    threading.Thread(target=gate.serve_forever, daemon=True).start()
    say("Gated launch control server started")
    signal.signal(signal.SIGTERM, lambda *_: drain(peers))
    for peer in peers:
        threading.Thread(target=watch, args=(peer,), daemon=True).start()
    Gate.opened.wait()
    gate.shutdown()
    gate.server_close()
    for peer in peers:
        peer.sendall(b"go\n")
    load(args, spec, 0)
    Api.ready = True
    say("The server is fired up and ready to roll!")
    signal.pause()


def drain(peers: list[socket.socket]) -> None:
    say("draining")
    for peer in peers:
        peer.sendall(b"end\n")
    time.sleep(PAUSE_S)
    os._exit(0)


def watch(peer: socket.socket) -> None:
    """A dead peer ends the gang, as with gloo."""
    try:
        gone = not peer.recv(1)
    except OSError:
        gone = True
    if gone:
        time.sleep(NOTICE_S)
        say("connection closed by peer")
        os._exit(1)


def follow(args: argparse.Namespace, spec: dict, host: str, port: int, rank: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM: waiting for rank 0"))
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=1)
            break
        except OSError:
            time.sleep(0.05)
    peer.settimeout(None)
    say("Gated launch waiting for activation")
    lines = peer.makefile()
    if lines.readline() != "go\n":
        os._exit(1)
    load(args, spec, rank)
    Api.ready = True
    word = lines.readline()
    if not word:
        time.sleep(NOTICE_S)
    say(f"rank 0 says {word.strip() or 'nothing: connection closed by peer'}")
    os._exit(0 if word == "end\n" else 1)


def load(args: argparse.Namespace, spec: dict, rank: int) -> None:
    say("Load weight begin.")
    time.sleep(PAUSE_S)
    if fault(rank) == "die-loading":
        say("stand-in: injected death while loading")
        os._exit(3)
    if fault(rank) != "no-proof":
        prove(spec, rank)
    say("Load weight end. mem usage=0.01 GB")
    server = ThreadingHTTPServer((args.host, args.port), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    main()
