"""The handler of mail.send: arguments on stdin, exit code 65 for arguments that will never do (scenes file: permanent).

An exception ends Python with exit code 1, which the scenes file does not name: whether the mail went out is then
unknown, and the task waits for a person.
"""
import json
import os
import sys

args = json.load(sys.stdin)
if "@" not in args.get("to", ""):
    print("no address in", args, file=sys.stderr)
    sys.exit(65)
print(f"mail to {args['to']}, with the Message-ID <{os.environ['SPILLWAY_IDEMPOTENCY_KEY']}>")
