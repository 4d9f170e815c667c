"""Copies of tensors for files."""

import torch

from attngraft.tensors import unshared


def test_files_have_the_values_of_views() -> None:
    values = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    found = unshared(
        {"negative": values.conj().imag, "conjugate": values.conj(), "tied": values, "turned": values[None].mT}
    )
    assert not any(each.is_neg() or each.is_conj() or not each.is_contiguous() for each in found.values())
    assert found["negative"].tolist() == [-3, -4] and found["conjugate"].tolist() == [1 - 3j, 2 - 4j]
    assert len({each.untyped_storage().data_ptr() for each in found.values()}) == 4
