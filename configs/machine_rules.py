"""Which values the settings of a machine may have. Each rule raises ValueError with the fix.

Messages about secrets do not repeat them.
"""

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

SHORTEST_PASSWORD = 12  # MLflow's rule
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_url(host: str, port: int) -> str:
    """How programs on this machine reach what listens on `host`."""
    name = _WILDCARDS.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def local_folder(path: Path) -> Path:
    if "://" in str(path) or ":/" in str(path):
        raise ValueError(f"{path} is no local folder")
    if path.expanduser().is_file():
        raise ValueError(f"{path} is a file; name a folder")
    return path.expanduser().absolute()


def store_address(url: str) -> str:
    """Without a scheme it would be a folder that no other machine sees."""
    if url and not all(url.partition("://")):
        raise ValueError(f"{url} is no address; write s3://bucket/folder or the like")
    return without_password(url)


def without_password(url: str) -> str:
    """A store's address is written into messages, plans and the names of uploads."""
    if "@" in url and urlsplit(url).password is not None:
        raise ValueError(
            "the address holds a password; leave it out, and let the client find it: a key file "
            "of ssh, AWS_SECRET_ACCESS_KEY, or ~/.config/fsspec/conf.json"
        )
    return url


def web_hook(url: str) -> None:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("the address must start with http:// or https://")  # it is a secret


def long_enough(password: str) -> None:
    if password and (len(password) < SHORTEST_PASSWORD or not password.isprintable()):
        raise ValueError(f"needs {SHORTEST_PASSWORD} printable characters or more")


def may_listen(host: str, password: str) -> None:
    """Whoever reaches the servers can run code here, so beyond loopback they must ask."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not password:
        raise ValueError(
            f"{host!r} would open servers without passwords to the network; set KLEAR_PASSWORD "
            f"({SHORTEST_PASSWORD} characters or more), or use 127.0.0.1 and an ssh tunnel"
        )


def server_address(url: str) -> str:
    """Of a server that runs elsewhere. It is shown on pages."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError("must be http://HOST:PORT or https://…")
    if "@" in parts.netloc:
        raise ValueError("must hold no password: set KLEAR_USER and KLEAR_PASSWORD")
    return url.rstrip("/").removesuffix("/api")
