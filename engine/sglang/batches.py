"""Builds every ForwardBatch that the model layer gives to SGLang. The modes:

    extend   a chunk of each row; logits of chosen tokens         ForwardMode.EXTEND
    decode   one token of each row; logits of all                 ForwardMode.DECODE
    verify   the nodes of each row's tree; logits of all          ForwardMode.TARGET_VERIFY
    draft    tokens of SGLang's own head, whatever their rows     ForwardMode.DECODE

Positions, pages and masks are Aerie's (`engine.sglang.attention`); this file fills in what SGLang's model files and its
logits processor read. Lengths on the host are upper bounds, so that nothing waits for the device. Batches of decode and
verify read nothing from the host at all, so that a CUDA graph may capture their passes.
"""

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs


def make_batch(
    ids: Tensor, positions: Tensor, slots: Tensor, inputs: AttentionInputs, wanted: Tensor | None, *, taps: bool
) -> ForwardBatch:
    """ids, positions and slots [tokens]; `wanted` [m] holds ascending indices of tokens with logits, None for all."""
    rows = inputs.qo_indptr.numel() - 1
    if wanted is not None:
        mode = ForwardMode.EXTEND
    elif ids.numel() == rows:
        mode = ForwardMode.DECODE
    else:
        mode = ForwardMode.TARGET_VERIFY
    counts = None if wanted is None else _sent(inputs.qo_indptr.diff(), ids.device)  # [rows]
    lengths = inputs.prefix_lens.long()  # [rows]
    batch = ForwardBatch(
        forward_mode=mode,
        batch_size=rows,
        input_ids=ids,
        req_pool_indices=torch.arange(rows, device=ids.device),
        # In a verify batch the lengths count only the prefix, in the others also the tokens being written.
        seq_lens=lengths if mode == ForwardMode.TARGET_VERIFY else lengths + (1 if counts is None else counts),
        out_cache_loc=slots,
        seq_lens_sum=inputs.kv_indices.numel() * inputs.page_size,
    )
    batch.positions = positions
    batch.spec_algorithm = SpeculativeAlgorithm.NONE
    batch.capture_hidden_mode = CaptureHiddenMode.FULL if taps else CaptureHiddenMode.NULL
    if wanted is not None and counts is not None:
        _extend(batch, inputs, wanted, counts)
    return batch


def _sent(counts: Tensor, device: torch.device) -> Tensor:
    """Counts of the host on the device, without waiting: from page-locked memory, which torch keeps until then."""
    return counts if device.type == "cpu" else counts.pin_memory().to(device, non_blocking=True)


def draft_batch(tokens: Tensor, positions: Tensor, slots: Tensor) -> ForwardBatch:
    """tokens, positions and slots [tokens]: a head's layers read nothing else."""
    count = tokens.numel()
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=count,
        input_ids=tokens,
        req_pool_indices=slots,
        seq_lens=positions + 1,
        out_cache_loc=slots,
        seq_lens_sum=count,
    )
    batch.positions = positions
    batch.spec_algorithm = SpeculativeAlgorithm.NONE
    batch.capture_hidden_mode = CaptureHiddenMode.NULL
    return batch


def _extend(batch: ForwardBatch, inputs: AttentionInputs, wanted: Tensor, counts: Tensor) -> None:
    """Adds the fields of a prefill. The logits processor takes token `cumsum(extend_seq_lens) - 1` of each row, so the
    distances between wanted tokens replace the rows' lengths.
    """
    batch.extend_num_tokens = batch.input_ids.numel()
    batch.extend_seq_lens = wanted.diff(prepend=wanted.new_full((1,), -1)).int()  # [m]
    batch.extend_prefix_lens = inputs.prefix_lens.int()
    batch.extend_start_loc = (counts.cumsum(0) - counts).int()
