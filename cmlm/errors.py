"""The one exception that means: the user can put this right."""


class UserError(ValueError):
    """A mistake in what the user gave: a flag, a configuration, an input file.

    The message is one line that names the value and what is allowed. Commands print
    it as `error: <message>` and exit with code 1 (see `cmlm.cli.run`).
    """
