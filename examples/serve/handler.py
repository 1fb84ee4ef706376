#!/usr/bin/env python3
"""The handlers of scenes.yaml: a plain HTTP server, as any language has one.

The arguments of a task are the body. 2xx means done, 4xx means never again, 503 and 429 mean again later (after
Retry-After, if given). The same task always comes with the same Idempotency-Key, so a service that keeps the keys of
what it has done can answer a repeat without doing it again.
"""
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

done = set()  # a real service keeps this in its database, in the transaction that does the work


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key, attempt = self.headers["Idempotency-Key"], int(self.headers["Spillway-Attempt"])
        if key in done:
            return self.answer(200, "done before")
        try:
            args = json.loads(body)
            what = args["name"] if self.path == "/greeting" else args["invoice"]
        except (ValueError, KeyError, TypeError) as err:
            return self.answer(400, f"bad arguments: {err!r}")  # permanent: they will not get better
        if args.get("flaky") and attempt == 1:
            return self.answer(503, "not now", {"Retry-After": "1"})
        done.add(key)
        print(f"{self.path[1:]} {what}: task {self.headers['Spillway-Task-Id']}, attempt {attempt}, key {key}", flush=True)
        self.answer(200, "done")

    def answer(self, status, text, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    address = ("127.0.0.1", int(os.environ.get("PORT", "8090")))
    print("listening on http://%s:%d" % address, flush=True)
    ThreadingHTTPServer(address, Handler).serve_forever()
