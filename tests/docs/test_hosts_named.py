"""What the pages say of hosts is what the code and the committed count say."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from attngraft.grafting.catalog import list_hosts
from tests.docs.pages import DOCS, ROOT, blocks

#: what README's table of hosts calls the models of each adapter
NAMED = {
    "timm.vit": ("ViT, DeiT (distilled too)", "ViT hybrids", "ViTamin"),
    "timm.relpos": ("relative positions",),
    "timm.eva": ("EVA, EVA-02", "DINOv3 and other ViTs with rotary positions", "BEiT"),
    "timm.naflex": ("NaFlexVit",),
    "timm.sam": ("SAM's image encoder",),
    "timm.qwen3": ("Qwen3-ViT",),
    "timm.deepseek": ("DeepSeek-ViT",),
    "timm.gemma4": ("Gemma4-ViT",),
    "timm.swin": ("Swin, Swin V2 and V2-CR",),
    "timm.maxxvit": ("MaxViT", "CoAtNet"),
    "timm.nest": ("NesT",),
    "timm.tiny_vit": ("TinyViT",),
    "timm.gcvit": ("GCViT",),
    "timm.davit": ("DaViT",),
    "timm.hiera": ("Hiera",),
    "timm.hieradet": ("HieraDet",),
    "timm.mvitv2": ("MViTv2",),
    "timm.twins": ("Twins",),
    "timm.pvt_v2": ("PVT v2",),
    "timm.levit": ("LeViT",),
    "timm.pit": ("PiT",),
    "timm.volo": ("VOLO",),
    "timm.crossvit": ("CrossViT",),
    "timm.cait": ("CaiT",),
    "timm.tnt": ("TNT",),
    "timm.convit": ("ConViT",),
    "timm.visformer": ("Visformer",),
    "timm.metaformer": ("CAFormer", "ConvFormer, PoolFormer and MobileViT V2 (MLPs only)"),
    "timm.csatv2": ("CSATv2",),
    "timm.efficientformer": ("EfficientFormer",),
    "timm.fastvit": ("FastViT",),
    "timm.mobilevit": ("FastViT, MobileViT, NextViT",),
    "timm.nextvit": ("NextViT",),
    "timm.xcit": ("XCiT (class attention and MLPs)",),
    "timm.mixer": ("MLP-Mixer, ResMLP, gMLP",),
    "timm.coat": ("CoaT",),
    "hf.vit": ("ViT, DeiT",),
    "hf.dinov2": ("DINOv2",),
    "hf.dinov3": ("DINOv3",),
    "hf.swin": ("Swin",),
    "hf.clip": ("CLIP and SigLIP",),
    "hf.bert": ("BERT, ",),
    "hf.roberta": ("RoBERTa, XLM-RoBERTa, CamemBERT",),
    "hf.electra": ("ELECTRA",),
    "hf.distilbert": ("DistilBERT",),
    "hf.modernbert": ("ModernBERT",),
    "hf.gpt2": ("GPT-2",),
    "hf.vision_encoder_decoder": ("VisionEncoderDecoder",),
    "hf.marian": ("Marian, BART",),
    "hf.m2m_100": ("mBART, M2M100 (NLLB)",),
    "hf.t5": ("T5, mT5",),
    "torch.nn": ("`MultiheadAttention`, encoder and decoder layers",),
    "torchvision.vit": ("ViT",),
    "torchvision.swin": ("Swin (V1 and V2)",),
    "t2t_vit": ("T2T-ViT",),
    "bixt": ("BiXT", "its baselines"),
    "captioning": ("the meshed-memory captioner",),
    "translation": ("the translation Transformer",),
}
#: the row of README's table, by the beginning of an adapter's name
ROWS = {"timm": "timm", "hf": "transformers", "torch": "torch.nn", "torchvision": "torchvision"}
ROWS |= dict.fromkeys(("t2t_vit", "bixt", "captioning", "translation"), "attngraft")


def text(page: Path) -> str:
    """A page without its line breaks."""
    return " ".join(page.read_text(encoding="utf-8").split())


def test_the_readme_names_every_host() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Hosts\n")[2].partition("\n## ")[0]
    rows = {row[1]: row[2] for row in re.finditer(r"(?m)^\| `([\w.]+)`[^|]* \| (.*) \|$", section)}
    found = {host.name for host in list_hosts() if host.name.partition(".")[0] in ROWS}
    assert found <= set(NAMED), "a host that README's table lacks"
    newer = {"timm.qwen3", "timm.deepseek", "timm.gemma4", "timm.csatv2", "timm.levit"}
    assert set(NAMED) - found <= newer, "which the oldest timm lacks"
    for host, names in NAMED.items():
        for name in names:
            assert name in rows[ROWS[host.partition(".")[0]]], host


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "faq.md"], ids=["README", "faq"])
def test_shares_are_those_of_the_count(page: Path) -> None:
    count: dict[str, Any] = json.loads((ROOT / "benchmarks" / "coverage.json").read_text())
    (xcit,) = (len(each["takes"]["horizontal"]) for each in count["families"] if each["family"] == "xcit")
    horizontal = sum(len(each["takes"]["horizontal"]) for each in count["families"])
    said = text(page)
    assert f"timm {count['timm']} has {count['names']} model names whose models attend over tokens" in said
    for graft, sites in (("horizontal", " at one or more sites"), ("bisa", "")):
        assert f"{count['share'][graft]:.1%}".replace("%", " %") + f" take `{graft}`{sites}" in said
    without = f"{(horizontal - xcit) / count['names']:.1%}".replace("%", " %")
    assert f"The {xcit} XCiT models" in said and f"without them, the share of `horizontal` is {without}" in said
    assert "benchmarks/coverage.json" in said


def test_a_host_of_your_own_is_about_forty_lines() -> None:
    """The page's two patched classes and its adapter, without blank lines and imports."""
    lines = {}
    for block in blocks(DOCS / "extend" / "host.md", "python"):
        for part in ast.parse(block.code).body:
            if isinstance(part, ast.ClassDef) and (part.name.startswith("Grafted") or part.name.endswith("Host")):
                source = ast.get_source_segment(block.code, part) or ""
                lines[part.name] = sum(bool(line.strip()) for line in source.splitlines())
    assert len(lines) == 3
    assert 35 <= sum(lines.values()) <= 45, lines
    for page in (ROOT / "README.md", DOCS / "faq.md", DOCS / "extend" / "host.md"):
        assert "about forty lines" in text(page), page


def test_every_extra_of_users_is_in_get_started() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    said = (DOCS / "start.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"(?m)^\| `([\w-]+)` \|", said.partition("## The demo")[0]))
    assert rows == set(extras) - {"dev", "docs", "test"}


def test_the_oldest_transformers_that_the_pages_name_is_that_of_the_pins() -> None:
    (pinned,) = re.findall(r"(?m)^transformers==([\d.]+)$", (ROOT / "requirements" / "oldest.txt").read_text())
    oldest = pinned.removesuffix(".0")
    for page in (ROOT / "README.md", DOCS / "faq.md", DOCS / "start.md"):
        assert f"{oldest} or later" in text(page), page
