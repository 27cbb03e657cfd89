"""Three padded ranks with rows from disk answer as one unpadded rank does with its tables in memory. Real
SGLang.

And they stop doing so when one weight, one row, one row's ownership or one look-back is wrong: the comparison
can fail.
"""

import asyncio
import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from orchestrator.lab.asking import ask, rows_read
from orchestrator.lab.environment import ensure
from orchestrator.lab.equality import Answer, Equality, compare
from orchestrator.lab.local import Files, LocalRankError, Running, reference, running
from orchestrator.lab.prompts import Prompt, prompts
from orchestrator.load import load_profile
from orchestrator.model.profile import EnvSetting
from orchestrator.package import build_package
from sparkyard_engine.engram import manifest
from sparkyard_engine.engram.format import PAGE_BYTES, ROWS_PER_PAGE
from sparkyard_engine.engram.hashing import Hasher, Layout
from sparkyard_engine.engram.page import PageSeal, row_slots

PROFILE = load_profile("lab")
CHUNK = 64
SEED = 1
COLUMNS, TABLES = 24, 2
FAULTS = Path(__file__).parent / "faults"
FEW = ("short 7", "128 tokens, chunks of 64", "shared prefix of 80 and 1", "shared prefix of 80 and 2")
pytestmark = pytest.mark.timeout(1500)  # the first one boots two deployments; minutes on a busy machine


@dataclass(frozen=True)
class Lab:
    """Checkpoint, packed stores and package, made once; what the reference says to every prompt."""

    files: Files
    stores: dict[int, str]
    expected: tuple[Answer, ...]

    def at(self, folder: Path, *plugins: Path) -> Files:
        """The same files for another deployment."""
        files = self.files
        return Files(files.python, files.engine, files.checkpoint, files.packs, folder, plugins)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Everything that the deployments share, and one boot of the reference."""
    folder = tmp_path_factory.mktemp("lab")
    python = ensure(lambda *_: None).python
    with zipfile.ZipFile(BytesIO(build_package().content)) as archive:
        archive.extractall(folder / "engine")
    files = Files(python, folder / "engine", folder / "checkpoint", folder / "packs", folder / "reference")
    environment = {**os.environ, "PYTHONPATH": str(files.engine)}

    def engine(module: str, *words: object) -> None:
        command = [str(python), "-m", f"sparkyard_engine.{module}", *map(str, words)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    engine("lab.checkpoint", files.checkpoint, "--seed", 7)
    stores = {}
    for rank in range(PROFILE.parallel.tp):
        words = [
            "--checkpoint",
            files.checkpoint,
            "--revision",
            PROFILE.model.revision,
            "--tp",
            3,
            "--rank",
            rank,
        ]
        output = files.packs / str(rank)
        engine(
            "engram.pack",
            *words,
            "--ownership",
            "balanced",
            "--output",
            output,
            "--status",
            folder / "pack.json",
        )
        stores[rank] = str(rank)
    with running(reference(PROFILE), files) as deployment:
        expected = asyncio.run(ask(deployment.url, prompts(SEED, CHUNK)))
    return Lab(files, stores, expected)


@dataclass(frozen=True)
class Deployment:
    """A deployment under test and what it is compared with."""

    lab: Lab
    running: Running
    folder: Path

    def compared(self, asked: tuple[Prompt, ...]) -> Equality:
        """Asks these prompts with an empty prefix cache."""
        flushed = httpx.post(f"{self.running.url}/flush_cache", timeout=60, trust_env=False)
        assert flushed.status_code == httpx.codes.OK
        found = asyncio.run(ask(self.running.url, asked))
        pairs = zip(prompts(SEED, CHUNK), self.lab.expected, strict=True)
        expected = [answer for prompt, answer in pairs if prompt in asked]
        return compare(expected, found, chunk=CHUNK)


# A class has one of these at a time: three ranks take 4 GB and both cores.
@pytest.fixture(scope="class")
def deployment(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The product as it is: three padded ranks, rows from disk."""
    folder = tmp_path_factory.mktemp("deployment")
    with running(PROFILE, lab.at(folder), lab.stores) as started:
        yield Deployment(lab, started, folder)


@pytest.fixture(scope="class")
def faulty(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The same with a second plug-in beside ours that falsifies on request."""
    folder = tmp_path_factory.mktemp("faulty")
    with running(PROFILE, lab.at(folder, FAULTS), lab.stores) as started:
        yield Deployment(lab, started, folder)


def few() -> tuple[Prompt, ...]:
    """A few prompts that still take every path: a chunk border, a cached prefix, concurrency."""
    asked = prompts(SEED, CHUNK)
    last = max(prompt.wave for prompt in asked)
    return tuple(prompt for prompt in asked if prompt.name in FEW or prompt.wave == last)


@contextmanager
def fault(deployment: Deployment, **wanted: Any) -> Iterator[None]:
    """The fault while the block runs."""
    file = deployment.folder / "fault.json"
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(wanted), encoding="utf-8")
    temporary.rename(file)
    try:
        yield
    finally:
        file.unlink()


def row_of_rank(lab: Lab, rank: int, tables: int = 0) -> int:
    """A row id that the prompt "short 7" looks up and that this rank owns; the last token's, of an owned
    column."""
    config = json.loads((lab.files.checkpoint / "config.json").read_text(encoding="utf-8"))
    code = (
        "import json, sys; from tokenizers import Tokenizer\n"
        "from sparkyard_engine.engram.hashing import compress_tokens, tokenizer_normaliser\n"
        "tokenizer = Tokenizer.from_file(sys.argv[1]); ids = range(tokenizer.get_vocab_size())\n"
        "texts = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]\n"
        "table, _ = compress_tokens(texts, [tokenizer.id_to_token(i) for i in ids], tokenizer_normaliser())\n"
        "print(json.dumps(table.tolist()))\n"
    )
    done = subprocess.run(
        [str(lab.files.python), "-c", code, str(lab.files.checkpoint / "tokenizer.json")],
        env={"PYTHONPATH": str(lab.files.engine)},
        check=True,
        capture_output=True,
        text=True,
    )
    layout = Layout.from_config(config)
    token_map = np.asarray(json.loads(done.stdout))
    hasher = Hasher.build(
        layout, token_map, config["engram_pad_token_id"], config["engram_compressed_vocab_size"]
    )
    (prompt,) = (prompt for prompt in prompts(SEED, CHUNK) if prompt.name == "short 7")
    rows = hasher.row_ids(*hasher.windows(np.asarray(prompt.tokens)))
    return int(rows[-1, tables, rank])


class TestAsItIs:
    """The product, and one falsified file of it."""

    def test_tokens_are_equal(self, deployment: Deployment) -> None:
        asked = prompts(SEED, CHUNK)
        before = rows_read(deployment.running.rank_urls)
        result = deployment.compared(asked)
        assert result.tokens_equal, result.as_json()
        assert result.equal_prompts == result.prompts == len(asked) >= 20
        assert result.chunked_prompts >= 3
        assert result.prefix_hits >= 6
        assert result.concurrent_prompts == 8
        # Every token that was computed looked up each of its rows on exactly one rank.
        read = rows_read(deployment.running.rank_urls) - before
        assert read % (COLUMNS * TABLES) == 0
        assert read >= COLUMNS * TABLES * (result.tokens - result.prompts)

    def test_every_rank_has_proved_its_plugin(self, deployment: Deployment) -> None:
        for rank, directory in enumerate(deployment.running.directories):
            proof = json.loads((directory / "proof.json").read_text(encoding="utf-8"))
            assert (proof["rank"], proof["tp"], proof["padded"]) == (rank, 3, 16)
            assert proof["engram"]["mode"] == "disk"
            assert [row["rank"] for row in proof["ranks"]] == [0, 1, 2]
            assert len({row["store_id"] for row in proof["ranks"]}) == 3
            counters = json.loads((directory / "engram.json").read_text(encoding="utf-8"))
            assert counters["errors"] == 0

    def test_one_wrong_packed_row_is_noticed(self, deployment: Deployment) -> None:
        """The row is changed in rank 1's file and its page sealed again, as a packer with a fault would leave
        it."""
        lab, rank = deployment.lab, 1
        store = lab.files.packs / lab.stores[rank]
        known = manifest.load(store)
        entry = known.layer(1)
        row = row_of_rank(lab, rank)
        local = int(entry.header.slice.local(np.asarray([row]))[0])
        number = local // ROWS_PER_PAGE + 1
        seal = PageSeal(bytes.fromhex(known.identity.store_id), 1)
        with (store / entry.file).open("r+b") as file:
            file.seek(number * PAGE_BYTES)
            right = file.read(PAGE_BYTES)
            pages = np.frombuffer(right, dtype=np.uint8).reshape(1, PAGE_BYTES).copy()
            slot = row_slots(pages)[0, local % ROWS_PER_PAGE]
            slot[:256] = slot[:256] ^ 0x80  # every value of the row changes its sign
            seal.apply(pages, np.asarray([number]))
            assert pages.tobytes() != right
            assert deployment.compared(few()).tokens_equal
            try:
                file.seek(number * PAGE_BYTES)
                file.write(pages.tobytes())
                file.flush()
                os.fsync(file.fileno())
                result = deployment.compared(few())
            finally:
                file.seek(number * PAGE_BYTES)
                file.write(right)
                file.flush()
                os.fsync(file.fileno())
        assert not result.tokens_equal
        assert result.first_mismatch is not None
        assert deployment.compared(few()).tokens_equal


class TestFalsified:
    """The product beside a second plug-in that falsifies."""

    def test_one_wrong_padded_weight_is_noticed(self, faulty: Deployment) -> None:
        assert faulty.compared(few()).tokens_equal
        with fault(faulty, fault="padding", rank=1, layer=2):
            result = faulty.compared(few())
        assert not result.tokens_equal
        assert result.first_mismatch is not None

    def test_one_row_without_an_owner_is_noticed(self, faulty: Deployment) -> None:
        with fault(faulty, fault="ownership", rank=2, layer=1, row=row_of_rank(faulty.lab, 2)):
            result = faulty.compared(few())
        assert not result.tokens_equal
        assert result.first_mismatch is not None
        assert result.first_mismatch.prompt == "short 7"

    def test_one_lost_look_back_at_a_cached_prefix_is_noticed(self, faulty: Deployment) -> None:
        with fault(faulty, fault="look-back", cached=80):
            result = faulty.compared(few())
        assert not result.tokens_equal
        assert result.first_mismatch is not None
        assert result.first_mismatch.prompt == "shared prefix of 80 and 1"
        assert faulty.compared(few()).tokens_equal  # nothing of the faults is left


def test_a_rank_without_the_plugin_does_not_serve(lab: Lab, tmp_path: Path) -> None:
    """SGLang is told to load other plug-ins only; by itself it would serve the stock table without a word."""
    other = EnvSetting(env="SGLANG_PLUGINS", value="other", why="the plug-in is left out")
    profile = reference(PROFILE)
    profile = profile.model_copy(update={"settings": (*profile.settings, other)})
    with (
        pytest.raises(LocalRankError, match="the sparkyard plug-in is not active"),
        running(profile, lab.at(tmp_path / "without")),
    ):
        pass
