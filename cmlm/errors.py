"""The exception for mistakes that the user can correct."""


class UserError(ValueError):
    """A mistake in the user's input: a flag, a configuration, a file.

    The message is one line that names the value and the allowed ones. Commands print it
    as `error: <message>` and exit with code 1 (see `cmlm.cli.run`).
    """
