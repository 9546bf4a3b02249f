"""An object store on this machine, at one end of a line: `versitygw` with files of a directory.

It keeps connections, which is not its default, because the large object stores do.
"""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from . import measure
from .line import SERVER, Line
from .measure import Failed

PORT = 7070
ADDRESS = f"http://{SERVER}:{PORT}"
#: Of the store that this program starts, and of nothing else.
ACCESS, SECRET, REGION = "benchmark", "benchmark-secret", "us-east-1"
BUCKET = "images"
#: Where programs look for an object store. Nothing of the user's own settings counts.
ENVIRONMENT = {
    "AWS_ENDPOINT_URL": ADDRESS, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION,
    "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_PROXY": "*", "no_proxy": "*",
    "RCLONE_CONFIG": "/dev/null",
    "RCLONE_CONFIG_STORE_TYPE": "s3", "RCLONE_CONFIG_STORE_PROVIDER": "Other",
    "RCLONE_CONFIG_STORE_ENV_AUTH": "true", "RCLONE_CONFIG_STORE_ENDPOINT": ADDRESS,
    "RCLONE_CONFIG_STORE_REGION": REGION,
}
#: Certificates and proxies are for other servers, and rclone refuses the first of them.
UNSET = ("AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_SESSION_TOKEN", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
#: What makes `curl` sign a request.
SIGNED = ("-sS", "--fail", "--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{ACCESS}:{SECRET}",
          "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD")


def set_environment() -> None:
    """Leads the programs that this one starts to the store."""
    for name in UNSET:
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)


class Store:
    """A running server with one bucket. The caller is at the client's end of the line."""

    def __init__(self, program: str, directory: Path, line: Line):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.log = directory.with_name(directory.name + ".log")
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                ["nsenter", f"--net={line.server}", program, "--port", f"{SERVER}:{PORT}",
                 "--region", REGION, "--keep-alive", "--quiet", "posix", directory],
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        self._wait()
        measure.run(["curl", *SIGNED, "-X", "PUT", f"{ADDRESS}/{BUCKET}"])

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and self._process.poll() is None:
            try:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ADDRESS, timeout=2)
                return
            except urllib.error.HTTPError:
                return  # It wants a signature.
            except OSError:
                time.sleep(0.05)
        text = self.log.read_text(errors="replace").strip()
        self.close()
        raise Failed(f"versitygw: does not start: {text[-300:]}")

    def put(self, path: Path) -> str:
        """Makes an object of a file; returns its key."""
        measure.run(["curl", *SIGNED, "-T", path, f"{ADDRESS}/{BUCKET}/{path.name}"])
        return path.name

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
