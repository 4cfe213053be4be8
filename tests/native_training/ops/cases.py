"""What tests of ops share."""

import pytest


def refused(error, text, call, *arguments, **options):
    """The call raises exactly this."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert str(caught.value) == text
