"""The exceptions of the package."""


class RedwarfsError(OSError):
    """An image cannot be read, built or extracted.

    `errno` has a number of the system, and `filename` the path in the image or of the image, if there
    is one. Paths that an image does not have raise `FileNotFoundError`, `NotADirectoryError` or
    `IsADirectoryError` instead, and failures of the system or of a server the exception that `open` would
    raise.
    """

    __module__ = "redwarfs"


class NotAnImageError(RedwarfsError, ValueError):
    """The file holds no image."""

    __module__ = "redwarfs"


class CorruptImageError(RedwarfsError, ValueError):
    """The image contradicts itself or its checksums. The message names the place if it is known."""

    __module__ = "redwarfs"


class UnverifiedError(RedwarfsError, ValueError):
    """The image does not prove what `verify` asks for: it is not signed by the key, for example."""

    __module__ = "redwarfs"


class UnsupportedError(RedwarfsError, ValueError):
    """The image needs a version, a feature or a codec that this package does not have."""

    __module__ = "redwarfs"


class LimitError(RedwarfsError, ValueError):
    """The image asks for more memory than a limit allows."""

    __module__ = "redwarfs"


class OptionError(RedwarfsError, ValueError):
    """There is no such option, or its value is invalid."""

    __module__ = "redwarfs"


class BuildError(RedwarfsError):
    """An image cannot be built, for example because an input file cannot be read."""

    __module__ = "redwarfs"


class ExtractError(RedwarfsError):
    """An image cannot be extracted, for example because of an unsafe name."""

    __module__ = "redwarfs"
