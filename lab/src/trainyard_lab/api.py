"""The lab's own way to the API server: JSON over HTTPS as the administrator, nothing remembered between calls."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from trainyard_lab.controlplane import LOOPBACK, ControlPlane

PATCH_MERGE = "application/merge-patch+json"
PATCH_APPLY = "application/apply-patch+yaml"
FIELD_MANAGER = "trainyard-lab"
CALL_SECONDS = 30

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused; `code` is its HTTP status."""

    def __init__(self, method: str, path: str, code: int, message: str) -> None:
        super().__init__(f"{method} {path}: {code}: {message}")
        self.code = code


class Api:
    """Calls to the API server of one control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._port = plane.ports.api_server
        self._context = plane.ssl_context()

    def get(self, path: str, **query: str) -> Object:
        return self._call("GET", path, query)

    def find(self, path: str) -> Object | None:
        """The object, or None if there is none of that name."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        return self._call("POST", path, {}, body)

    def merge(self, path: str, body: Object) -> Object:
        """Merge the fields of `body` into the object."""
        return self._call("PATCH", path, {}, body, PATCH_MERGE)

    def apply(self, path: str, body: Object) -> Object:
        """Make the object's fields those of `body`, whether it exists or not (server-side apply)."""
        return self._call("PATCH", path, {"fieldManager": FIELD_MANAGER, "force": "true"}, body, PATCH_APPLY)

    def delete(self, path: str) -> None:
        """Delete the object; one that is not there is not missed."""
        try:
            self._call("DELETE", path, {})
        except ApiError as error:
            if error.code != 404:
                raise

    def changes(self, path: str, seconds: int) -> Iterator[Object]:
        """Each object as it is now, then each as it changes, for so many seconds at most.

        What is deleted comes once more, as it was. Ends early when the server ends the stream.
        """
        listed = self.get(path)
        yield from listed["items"]
        query = {
            "watch": "true",
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "timeoutSeconds": str(seconds),
        }
        connection = self._connection(seconds + CALL_SECONDS)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}")
            answer = connection.getresponse()
            if answer.status != 200:
                raise ApiError("GET", path, answer.status, answer.read().decode(errors="replace"))
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["object"]
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(LOOPBACK, self._port, timeout=seconds, context=self._context)

    def _call(
        self, method: str, path: str, query: dict[str, str], body: Object | None = None, kind: str = "application/json"
    ) -> Object:
        connection = self._connection(CALL_SECONDS)
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            content = None if body is None else json.dumps(body)
            connection.request(method, target, body=content, headers={"Content-Type": kind})
            answer = connection.getresponse()
            content_read = answer.read()
        finally:
            connection.close()
        result: Object = json.loads(content_read) if content_read.startswith(b"{") else {}
        if answer.status >= 400:
            message = result.get("message") or content_read.decode(errors="replace")
            raise ApiError(method, path, answer.status, message)
        return result
