"""Who updates which weight."""

from torch import nn

from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.schedule import set_rate


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.lm_head = nn.Linear(4, 5, bias=False)


def test_matrices_go_to_muon_and_the_rest_to_adamw() -> None:
    model = _Model()
    names = {weight: name for name, weight in model.named_parameters()}

    def taken(apart: str) -> list[set[str]]:
        return [{names[w] for group in o.param_groups for w in group["params"]} for o in divided(model, apart=apart)]

    assert taken("lm_head") == [{"embed.weight", "inner.weight"}, {"inner.bias", "lm_head.weight"}]
    assert taken("embed") == [{"inner.weight", "lm_head.weight"}, {"embed.weight", "inner.bias"}]
    muon, adamw = divided(model, betas=(0.5, 0.6), matrix_decay=0.1, vector_decay=0.2)
    assert muon.param_groups[0]["weight_decay"] == 0.1 and muon.param_groups[0]["lr"] == 0.0
    assert adamw.param_groups[0]["betas"] == (0.5, 0.6) and adamw.param_groups[0]["weight_decay"] == 0.2


def test_some_matrices_learn_at_a_share_of_the_rate() -> None:
    model = _Model()
    names = {weight: name for name, weight in model.named_parameters()}
    muon, _ = divided(model, slower={"inn": 0.25, "lm": 0.5})
    set_rate(muon, 0.4)
    rates = {names[weight]: group["lr"] for group in muon.param_groups for weight in group["params"]}
    assert rates == {"embed.weight": 0.4, "inner.weight": 0.1}
    before = model.inner.weight.detach().clone()
    model.inner(model.embed.weight).square().sum().backward()
    muon.step()
    assert not before.equal(model.inner.weight)
