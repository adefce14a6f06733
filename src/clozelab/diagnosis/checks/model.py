"""Checks of the model: its weights, mask token, masked share, accuracy and embeddings."""

from __future__ import annotations

from clozelab.diagnosis.case import Case
from clozelab.diagnosis.result import CheckResult, caution, healthy, ill
from clozelab.diagnosis.weights import EmbeddingTable

_FEWEST, _MOST = 0.05, 0.6  # of the tokens; no good training is known beyond
_USUAL = (0.1, 0.45)  # from BERT's 15 % to the 40 % of arXiv:2202.08005, and a little more
# Not tuned: faults miss these by far.
_MISSED = 0.3  # relative to the requested rate
_COPIED = 0.9  # accuracy at tokens that were kept
_BLIND = 0.3  # of the accuracy at random tokens
_SOME = 0.5  # of the rows of a table


def weights(case: Case) -> CheckResult | None:
    """Check whether the newest weights can be read."""
    if case.damaged is None:
        return None
    return ill(
        "the weights cannot be read",
        str(case.damaged),
        cause="the file is truncated or damaged, by a full disk or an interrupted copy",
        remedy="copy the file again, or resume the run with --resume, which uses the checkpoint"
        " before it",
    )


def mask_token(case: Case) -> CheckResult | None:
    """Check whether the tokenizer's mask token is that of the model."""
    mask = case.mask_token
    if mask is None:
        return None
    fix = "set mask_token in tokenizer_config.json to the token that the model was trained with"
    fault = ""
    if mask.name is None:
        fault, evidence = "has no mask token", "neither [MASK] nor <mask> is in its vocabulary"
        fix = "build the corpus with a tokenizer that has [MASK]"
    elif mask.number is None:
        fault, evidence = (
            "does not know its own mask token",
            f"{mask.name} is not in its vocabulary",
        )
    elif case.vocabulary is not None and mask.number >= case.vocabulary:
        fault = "has a mask token that the model has no embedding for"
        evidence = (
            f"{mask.name} is id {mask.number:,}, the model has {case.vocabulary:,} embeddings"
        )
        fix = "resize the model's embeddings to the tokenizer, and continue training"
    elif mask.same_as is not None:
        fault = "uses one token in two roles"
        evidence = f"{mask.name} is id {mask.number:,}, which is also the {mask.same_as} token"
    elif mask.pieces != 1:
        fault = "splits its mask token"
        evidence = f"{mask.name} in a text becomes {mask.pieces} tokens"
        fix = f"declare {mask.name} as a special token of the tokenizer"
    if fault:
        return ill(
            f"the tokenizer {fault}",
            evidence,
            cause="the tokenizer belongs to another model, or its files were edited",
            remedy=fix,
        )
    evidence = f"{mask.name} is id {mask.number:,}"
    if mask.others:
        return caution(
            "the tokenizer has two mask tokens",
            f"{evidence}, but {mask.others[0]} exists, too",
            cause="a mask token was added to a tokenizer that already had one",
            remedy=f"use {mask.others[0]} if the model was trained with it",
        )
    return healthy("the mask token is in place", evidence)


def masked_share(case: Case) -> CheckResult | None:
    """Check the share of masked tokens against the requested one."""
    if case.recipe is None or not case.predicts_masks:
        return None
    mask_rate = getattr(case.recipe.masking, "mask_rate", None)
    share = case.masked_share if case.masked_share is not None else mask_rate
    if share is None:
        return None
    masks = case.recipe.corruption.mask
    evidence = f"{share:.1%} of the tokens are masked"
    evidence += f" (the recipe asks for {mask_rate:.1%})" if mask_rate is not None else ""
    evidence += f", {masks:.0%} of them replaced by the mask token"
    if mask_rate is not None and (share < _FEWEST or share > _MOST):
        few = share < _FEWEST
        return ill(
            f"too {'few' if few else 'many'} tokens are masked",
            evidence,
            cause="a step learns only from the tokens that it predicts" if few else
            "too little context is left",
            remedy=f"--set masking.mask_rate={'0.15' if few else '0.3'}",
        )  # fmt: skip
    if masks < 0.5:
        return caution(
            "most masked tokens are not replaced by the mask token",
            evidence,
            cause="copying unchanged tokens lowers the loss without learning anything",
            remedy="--set corruption.mask=0.8 corruption.same=0.1",
        )
    if mask_rate is not None and abs(share - mask_rate) > _MISSED * mask_rate:
        return caution(
            "the share of masked tokens is not what the recipe asks for",
            evidence,
            cause="a cap, whole units that do not fit, or very short blocks",
            remedy="inspect the masks: clozelab mask",
        )
    if mask_rate is not None and not _USUAL[0] <= share <= _USUAL[1]:
        return caution(
            "an unusual share of the tokens is masked",
            evidence,
            cause="papers mask 15 to 40 %",
            remedy="--set masking.mask_rate=0.15, or 0.3",
        )
    return healthy("the usual share of the tokens is masked", evidence)


def accuracy(case: Case) -> CheckResult | None:
    """Check the accuracies where a mask, a random token or the token itself was read."""
    seen = case.accuracy
    if "mask" not in seen or not case.predicts_masks:
        return None
    names = {"mask": "masked", "random": "random", "same": "kept"}
    evidence = "accuracy " + ", ".join(f"{seen[what]:.1%} at {names[what]}" for what in seen)
    evidence += " tokens"
    copies = seen.get("same", 0.0)
    elsewhere = seen.get("random", 0.0)
    if elsewhere > 0.05 and seen["mask"] < _BLIND * elsewhere:
        return ill(
            "the model predicts well except at mask tokens",
            evidence,
            cause="its mask token is not the one that it was trained with",
            remedy="compare the mask token's id with that of the model's own tokenizer",
        )
    common = case.text.commonest if case.text is not None else 0.0
    young = case.log is not None and case.log.young
    if common and seen["mask"] < 1.5 * common and not young and not case.worse_than_guessing:
        copying = "it copies its input, and " * (copies > _COPIED)
        return caution(
            f"{copying or 'it '}predicts masked tokens hardly better than always predicting the"
            " most frequent token",
            f"{evidence}; always predicting the most frequent token gives {common:.1%}",
            cause="it is on the unigram plateau, where the context is not used",
            remedy="use smaller batches with more steps, or raise the learning rate",
        )
    return healthy(f"it predicts {seen['mask']:.0%} of the masked tokens correctly", evidence)


def embeddings(case: Case) -> CheckResult | None:
    """Check whether the embeddings were trained."""
    results = [_check_table(case, table) for table in case.tables if table.finite]
    worst = sorted((one for one in results if one), key=lambda one: one.level != "ill")
    if worst:
        return worst[0]
    if not results:
        return None
    rows = sum(table.rows for table in case.tables)
    unmoved = sum(len(table.unmoved) for table in case.tables)
    evidence = f"{rows - unmoved:,} of {rows:,} rows changed, by {case.tables[0].seen_by}"
    return healthy("the embeddings are trained", evidence)


def _check_table(case: Case, table: EmbeddingTable) -> CheckResult | None:
    unmoved = len(table.unmoved)
    evidence = f"{unmoved:,} of {table.rows:,} rows of {table.name} unchanged, by {table.seen_by}"
    if unmoved == table.rows:
        if not table.others_moved:
            return ill(
                "no weight changed between the last two checkpoints",
                evidence,
                cause="the learning rate is 0, or all parameters are frozen",
                remedy="check the learning-rate schedule, and that the optimiser has the model's"
                " parameters",
            )
        return ill(
            f"the embeddings of {table.kind} never change",
            evidence,
            cause="they are frozen, or the optimiser does not have them",
            remedy="unfreeze them (requires_grad), and give the optimiser all parameters",
        )
    if table.kind == "positions" and unmoved:
        return _check_positions(case, table, evidence)
    if unmoved > _SOME * table.rows:
        return caution(
            "many embeddings never change",
            evidence,
            cause="these tokens do not occur in the text",
            remedy="trim the vocabulary to the text, or train a tokenizer on the text",
        )
    return None


def _check_positions(case: Case, table: EmbeddingTable, evidence: str) -> CheckResult | None:
    """Warn of positions beyond the longest block, unless the recipe has short blocks."""
    moved = sorted({*range(table.rows)} - {*table.unmoved})
    longest = moved[-1] - moved[0] + 1  # RoBERTa's first position is row 2
    # The last token of a causal block predicts nothing, and gets no gradient.
    if case.recipe is not None and case.recipe.blocks.length <= longest + 1:
        return None
    return caution(
        f"positions beyond {longest:,} tokens were never trained",
        evidence,
        cause="the training blocks were shorter than the model's positions",
        remedy=f"keep texts within {longest:,} tokens, or train some steps on longer blocks",
    )
