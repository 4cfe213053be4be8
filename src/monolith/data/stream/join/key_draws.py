"""`KeyDraws`: random numbers that depend on a key, not on the position of a sample."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolith.data.operations.draws import Draws
from monolith.data.operations.sample_rows import Ids
from monolith.data.order import mix


@dataclass(frozen=True)
class KeyDraws(Draws):
    """Random numbers of samples with keys: a replay in another order draws the same.

    Args:
        keys: key of each sample of the block.

    Example:
        >>> both, one = (KeyDraws(0, 0, np.array(keys)) for keys in ([7, 8], [8]))
        >>> bool(both.uniform(2, seed=3)[1] == one.uniform(1, seed=3)[0])
        True
    """

    keys: Ids

    def uniform(self, count: int, seed: int, stream: int = 0) -> npt.NDArray[np.float64]:
        """Return a number in [0, 1) for the key of each sample; streams are independent."""
        start = np.array([seed & (2**64 - 1), stream], np.uint64)
        salt = mix(mix(start[:1]) + start[1:])
        words = mix(self.keys[:count].view(np.uint64) + salt)
        # The second round separates seeds whose salts differ by a difference of keys.
        words = mix(words ^ salt)
        drawn: npt.NDArray[np.float64] = (words >> np.uint64(11)) * 2.0**-53
        return drawn
