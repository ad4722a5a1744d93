"""A model hub on this machine's loopback: answers what huggingface_hub asks to create, upload and download a model.

Small text files come inside the commit; others go by LFS, as on the real hub: asked for in a batch, put, then named in the
commit by their hash.
"""

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str) -> str:
        files = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in self.repos[repo].items())
        return hashlib.sha1(json.dumps(files).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def answer(self, value, code=200, headers=None, body=None):
        data = json.dumps(value).encode() if body is None else body
        self.send_response(code)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def parts(self) -> list[str]:
        self.server.requests.append(f"{self.command} {self.path}")
        return self.path.split("?")[0].strip("/").split("/")

    def do_POST(self):
        parts, body = self.parts(), self.body()
        if parts[:3] == ["api", "repos", "create"]:
            wanted = json.loads(body)
            repo = f"{wanted.get('organization', 'user')}/{wanted['name']}"
            known = repo in self.server.repos
            self.server.repos.setdefault(repo, {})
            self.answer({"url": f"{self.server.address}/{repo}", "id": repo}, 409 if known else 200)
        elif parts[:2] == ["api", "validate-yaml"]:
            self.answer({"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".onnx")) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif parts[-1] == "batch":
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.server.address}/put/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif "commit" in parts:
            repo = "/".join(parts[2:4])
            for line in body.decode().splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.server.repos[repo][value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.server.repos[repo][value["path"]] = self.server.objects[value["oid"]]
            commit = self.server.commit(repo)
            url = f"{self.server.address}/{repo}/commit/{commit}"
            self.answer({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})
        else:
            self.answer({"error": f"not here: {self.path}"}, 404)

    def do_PUT(self):
        name, data = self.parts()[-1], self.body()
        assert hashlib.sha256(data).hexdigest() == name
        self.server.objects[name] = data
        self.answer({})

    def do_GET(self):
        parts = self.parts()
        if parts[:2] == ["api", "models"]:
            repo = "/".join(parts[2:4])
            if repo not in self.server.repos:
                self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            files = self.server.repos[repo]
            if "tree" in parts:
                rows = [{"type": "file", "path": n, "size": len(d), "oid": git_blob(d)} for n, d in files.items()]
                self.answer(rows)
                return
            siblings = [{"rfilename": name} for name in files]
            self.answer({"id": repo, "modelId": repo, "sha": self.server.commit(repo), "siblings": siblings})
        elif len(parts) > 4 and parts[2] == "resolve" and parts[4] in self.server.repos.get("/".join(parts[:2]), {}):
            repo = "/".join(parts[:2])
            data = self.server.repos[repo][parts[4]]
            headers = {"ETag": f'"{git_blob(data)}"', "X-Repo-Commit": self.server.commit(repo)}
            self.answer(None, 200, headers, data)
        else:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def running():
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
