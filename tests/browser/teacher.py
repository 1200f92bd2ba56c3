"""An OpenAI-compatible teacher on loopback that repeats the key it was given when it refuses it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "teacher-r1"
ANSWER = "<think>\nnothing to think\n</think>\n\n\\boxed{1}"


class Teacher(ThreadingHTTPServer):
    """`keys_seen` are the keys of all requests so far; those in `refused` get 401."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.keys_seen: set[str] = set()
        self.refused: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Answer(BaseHTTPRequestHandler):
    server: Teacher  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._say(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.keys_seen.add(key)
        if key in self.server.refused:
            message = f"Incorrect API key provided: {key}"
            self._say(401, {"error": {"message": message, "code": "invalid_api_key"}})
            return
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL}
        self._say(200, {**reply, "choices": [choice], "usage": usage})

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, *_: object) -> None:
        """No line on stderr for every request."""


@contextmanager
def teaching() -> Iterator[Teacher]:
    server = Teacher()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
