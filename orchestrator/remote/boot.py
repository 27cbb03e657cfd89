"""The constant command that starts the agent on a node.

It reads one JSON line (digest and size of the agent, the node's root), says whether it needs the file, takes it if
so, and becomes the agent. Everything that varies goes through standard input, so nothing is ever quoted.
"""

from __future__ import annotations

import shlex

PROGRAM = """
import hashlib, json, os, sys
source, sink = sys.stdin.buffer, sys.stdout.buffer
def say(word):
    sink.write(json.dumps({"boot": word}).encode() + b"\\n")
    sink.flush()
hello = json.loads(source.readline(65536))
folder = os.path.join(hello["root"], "agent")
path = os.path.join(folder, hello["sha256"] + ".pyz")
def good(data):
    return hashlib.sha256(data).hexdigest() == hello["sha256"]
try:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        with open(path, "rb") as file:
            have = good(file.read())
    except OSError:
        have = False
    say("have" if have else "need")
    if not have:
        data = source.read(hello["size_bytes"])
        if not good(data):
            say("the agent arrived damaged")
            sys.exit(2)
        temporary = path + "." + str(os.getpid()) + ".tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
except OSError as error:
    say("%s: %s" % (error.filename, error.strerror))
    sys.exit(2)
os.environ["SPARKYARD_AGENT_HELLO"] = json.dumps(hello)
python = hello.get("python") or sys.executable
try:
    os.execvp(python, [python, "-I", path])
except OSError as error:
    say("%s: %s" % (python, error.strerror))
"""

ARGV = ("python3", "-c", PROGRAM)
COMMAND = shlex.join(ARGV)
