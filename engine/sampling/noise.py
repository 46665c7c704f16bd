"""Stateless Gumbel noise g(key, absolute position, token): the same bits on every device, whatever was drafted or
batched.

A counter-based hash in the style of the murmur3 finalizer. u is kept below 1: in fp32 the largest hashes would round to
1 and their noise to infinity, at about 0.5 % of positions with a vocabulary of 128k.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_BELOW_ONE = 1 - 2**-24
_GOLDEN = 0x9E3779B1


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """keys [n] int64, positions [n] integer, tokens [v] integer ids -> [n, v] float32 of standard Gumbel noise."""
    rows = _row_state(keys, positions)  # [n]
    columns = tokens.long() * _GOLDEN & _MASK  # [v]
    hashed = _finalize(columns[None, :] ^ (rows & _MASK)[:, None]).add_((rows >> 32)[:, None]).bitwise_and_(_MASK)
    uniform = _finalize(hashed).float().add_(0.5).mul_(2**-32).clamp_(max=_BELOW_ONE)  # [n, v], as hashed
    return uniform.neg_().log1p_().neg_().log_().neg_()


def uniform(keys: Tensor, positions: Tensor) -> Tensor:
    """keys [n] int64, positions [n] integer -> [n] float32 in (0, 1), one for each pair."""
    return (_row_state(keys, positions) & _MASK).float().add_(0.5).mul_(2**-32).clamp_(max=_BELOW_ONE)


def _row_state(keys: Tensor, positions: Tensor) -> Tensor:
    """keys [n], positions [n] -> 63 bits for each pair, both halves well mixed."""
    low = _finalize((keys & _MASK) ^ _finalize(positions.long() * _GOLDEN + 1 & _MASK))
    high = _finalize((keys >> 32 & _MASK) + low & _MASK)
    return (high >> 1 << 32) | _finalize(low ^ high)


def _finalize(x: Tensor) -> Tensor:
    """murmur3's 32-bit finalizer, in int64 since torch has no unsigned shifts on a CPU. Overwrites x."""
    shifted = x >> 16
    x.bitwise_xor_(shifted).mul_(0x85EBCA6B).bitwise_and_(_MASK)
    x.bitwise_xor_(torch.bitwise_right_shift(x, 13, out=shifted)).mul_(0xC2B2AE35).bitwise_and_(_MASK)
    return x.bitwise_xor_(torch.bitwise_right_shift(x, 16, out=shifted))
