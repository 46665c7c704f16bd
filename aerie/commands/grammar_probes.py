"""The commands of `aerie probe` about answers that must match a grammar: whether they do, what that costs, and what
random schemas and cancellations do.
"""

from pathlib import Path
from typing import Annotated

import typer

from aerie.bench.origin import FIXED
from aerie.commands.probe_options import (
    QUICK_PROMPTS,
    Json,
    MaxTokens,
    Overrides,
    Prompts,
    Quick,
    Target,
    config_of,
    end,
    inline,
    prompts_of,
)
from aerie.lane import make_lane

structured = typer.Typer()


@structured.command("structured")
def structured_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 96,
    quick: Quick = False,
    also: Annotated[list[str] | None, typer.Option(help="A config of the same target with another head")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests open at once")] = 4,
    top_k: Annotated[int, typer.Option(min=0, help="top_k of the sampled requests; 0 is all")] = 0,
) -> None:
    """Whether answers match their grammars, and are the same however they are decoded."""
    import jsonschema  # type: ignore[import-untyped]

    from aerie.commands.prompts import named_schemas
    from aerie.probe.named_schemas import measure_named
    from aerie.probe.report import show
    from aerie.probe.structured import Sizes, measure_structured
    from aerie.server.text.tokenizer import Tokenizer

    config = inline(config_of(target, overrides))
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    formats = jsonschema.FormatChecker()
    sizes = Sizes(concurrency=concurrency, max_tokens=max_tokens, top_k=top_k)
    asked = QUICK_PROMPTS if quick else prompts

    def check(value: object, schema: dict[str, object]) -> None:
        jsonschema.validate(value, schema, format_checker=formats)

    named = measure_named(config, named_schemas(config, asked), make_lane, tokenizer.decode, check)
    cells = measure_structured(
        [config, *(inline(config_of(other, overrides)) for other in also or [])],
        prompts_of(config, asked),
        make_lane,
        tokenizer.decode,
        check,
        sizes,
    )
    columns = {"mode": "s", "temperature": ".1f", "strict": "s", "answers": "d", "valid": "d", "same": "d"}
    columns |= {"tokens_a_step": ".2f", "tokens_a_step_free": ".2f", "over_free": ".3f", "lower": ".3f"}
    columns |= {"upper": ".3f", "masks_a_choice": ".3f", "forced_drafts": "d", "forbidden_drafts": "d"}
    show("Prompts that name a schema", named, columns)
    columns = {
        "head": "s",
        "mode": "s",
        "overlap": "s",
        "temperature": ".1f",
        "answers": "d",
        "stopped": "d",
        "valid": "d",
    }
    columns |= {"equal": "s", "tokens_a_step": ".2f", "tokens_a_step_free": ".2f", "tokens_over_free": ".2f"}
    columns |= {"drafted": "d", "forced_drafts": "d", "forbidden_drafts": "d", "masks_a_choice": ".3f"}
    end("Answers that match grammars", cells, columns, config, json, named=named, rooms=FIXED)


@structured.command("structured-costs")
def structured_costs_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 8,
    quick: Quick = False,
) -> None:
    """What grammars, penalties and large schemas cost rows that decode, and a simulated device."""
    from aerie.commands.prompts import named_schemas
    from aerie.probe.masked_device import made_up_vocabulary, measure_masked_device
    from aerie.probe.report import show
    from aerie.probe.structured_costs import Sizes, measure_arrival, measure_costs

    config = config_of(target, overrides)
    sizes = Sizes(rounds=1, arrivals=1, tokens=12) if quick else Sizes()
    cells = measure_costs(config, named_schemas(config, prompts), make_lane, sizes)
    arrivals = measure_arrival(config, prompts_of(config, prompts), make_lane, sizes)
    simulated = measure_masked_device(made_up_vocabulary(), steps=2 if quick else 30)
    columns = {"schema": "s", "bytes": "d", "steps": "d"}
    columns |= {"longest_ms": ".2f", "longest_ms_free": ".2f", "stall_ms": ".2f"}
    show("The longest step while a request arrives", arrivals, columns)
    columns = {"rows": "d", "threads": "d", "pass_ms": ".2f", "masks_ms": ".2f", "one_thread_ms": ".2f"}
    show("Masks beside a simulated 8B on an H100", simulated, columns | {"idle_share_more": ".4f"})
    columns = {"batch": "s", "temperature": ".1f", "steps": "d", "lane_ms_a_step": ".3f", "over_free": ".3f"}
    columns |= {"lower": ".3f", "upper": ".3f", "token_ms": ".3f", "token_over_free": ".3f", "token_lower": ".3f"}
    columns |= {"token_upper": ".3f", "masks_a_step": ".2f", "mask_ms_a_step": ".3f"}
    end("Rows beside each other", cells, columns, config, json, arrivals=arrivals, simulated=simulated, rooms=FIXED)


@structured.command("grammars")
def grammars_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 16,
    quick: Quick = False,
    schemas: Annotated[int, typer.Option(min=2, help="Random schemas to check")] = 10_000,
    cancellations: Annotated[int, typer.Option(min=1, help="Requests that leave at any time")] = 5_000,
) -> None:
    """Random schemas, which are refused by name or build, and requests with grammars that leave at any time."""
    from contextlib import closing

    from aerie.contracts.grammar import Grammar
    from aerie.probe.grammars import cancel_at_random, fuzz_schemas, vocabulary_at
    from aerie.server.text.grammars import Constraint, Grammars
    from aerie.server.text.tokenizer import Tokenizer

    config = inline(config_of(target, overrides))
    folder = Path(config.model.path)
    checks = Grammars(Tokenizer.served(folder, config.server), config.limits)
    with closing(make_lane(config)) as lane:
        end_ids = list(lane.capacity.end_ids)

        def check(text: str) -> None:
            checks.check(Constraint("guided_json", lambda: Grammar(kind="json_schema", text=text)), end_ids)

        vocabulary = vocabulary_at(folder, lane)
        figures = fuzz_schemas(check, vocabulary, 200 if quick else schemas)
        figures |= cancel_at_random(lane, config, prompts_of(config, prompts), 40 if quick else cancellations)
    columns = {"schemas": "d", "refused": "d", "built": "d", "failed_later": "d", "slowest_ms": ".1f", "peak_mb": "d"}
    columns |= {"cancelled": "d", "asked": "d", "ended": "d", "masks": "d"}
    end("Grammars under attack", [figures], columns, config, json)
