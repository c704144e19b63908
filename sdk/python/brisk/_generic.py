"""What Function[P, R] needs of typing, without importing it: a container's start would pay for that."""


class Generic:
    """Takes any subscript and ignores it."""

    def __class_getitem__(cls, params: object) -> type:
        return cls


P = R = None
