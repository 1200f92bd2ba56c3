"""What can be wrong with a sandbox, as opposed to with the program in it."""


class SandboxUnavailable(RuntimeError):
    """No isolation on this machine; the message names what is missing and the fix."""


class SandboxDied(RuntimeError):
    """The running sandbox went away or stopped answering; a new one may work."""
