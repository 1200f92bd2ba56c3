"""Running programs that nobody trusts, and what can be wrong apart from the program."""


class MachineUnfit(RuntimeError):
    """Nothing can be computed or judged here, whatever the input is; the message has the fix."""


class SandboxUnavailable(MachineUnfit):
    """No isolation on this machine; the message names what is missing and the fix."""


class SandboxDied(RuntimeError):
    """The running sandbox went away or stopped answering; a new one may work."""
