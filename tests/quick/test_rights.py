"""The list of rights: exact, complete, the only way to root, and refused when a node sends anything else."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent import privileged, remedies, rights
from node_agent.nfs import text as nfs_text
from orchestrator.errors import ConfigError
from orchestrator.plan.sudoers import Right, sudoers
from orchestrator.rights import Listing, wanted
from tests.nodes import rights as page

AGENT = Path(rights.__file__).parent


def test_the_page_has_the_table_of_today() -> None:
    text = page.PAGE.read_text()
    assert text == page.page(text), "python -m tests.nodes.rights"


def test_every_line_names_a_program_of_the_system_and_no_wildcard() -> None:
    found, exports, fstab = page.example()
    lines = page.text_of_sudoers().splitlines()
    assert len(lines) == len(found) + 2
    for line in lines[2:]:
        assert line.startswith("spark ALL=(root) NOPASSWD: /usr/")
        assert not set(line.replace("ALL=(root) NOPASSWD:", "")) & set("*?[]!")
    assert exports.splitlines()[1].startswith("/models/DeepSeek-V4.1-Flash 192.168.1.2(ro,")
    assert "anonuid=1000" in exports
    assert fstab.startswith("192.168.1.1:/models/DeepSeek-V4.1-Flash /var/lib/sparkyard/nfs nfs4 ro,")
    for one in found:
        for word in one.argv[1:]:
            assert not word.startswith(("/home/", "/tmp/")), "no place that an account can write"


@pytest.mark.skipif(shutil.which("visudo") is None, reason="sudo is not installed")
def test_visudo_accepts_the_list(tmp_path: Path) -> None:
    place = tmp_path / "list"
    odd = Right(
        name="odd",
        argv=("/usr/bin/mount", "-o", "ro,sec=sys", "fd00::4%enP7s7:/a+b@c-d_e"),
        verb="share",
        why="characters",
    )
    place.write_text(sudoers("spark", [*page.example()[0], odd]))
    done = subprocess.run(["visudo", "-c", "-f", str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_one_file_of_the_agent_starts_sudo() -> None:
    """Programs that give rights, as the first word of a command line or by their path."""
    gives = {"sudo", "su", "pkexec", "doas"}
    found = set()
    for path in AGENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            first = node.elts[0] if isinstance(node, (ast.List, ast.Tuple)) and node.elts else None
            words = [one.value for one in (first, node) if isinstance(one, ast.Constant)]
            if any(str(word).startswith("/usr/bin/") and str(word)[9:] in gives for word in words) or (
                isinstance(first, ast.Constant) and first.value in gives
            ):
                found.add(path.relative_to(AGENT).as_posix())
    assert found == {"privileged.py"}


def test_what_a_repair_runs_is_in_the_list() -> None:
    """`usermod` is not, on purpose: the group docker is root, so its right would be all rights."""
    known = {tuple(one.argv) for one in page.example()[0]}
    for kind, args in (
        ("sysctl", {"name": "net.ipv4.ip_forward", "value": 1}),
        ("sysctl", {"name": "net.ipv4.conf.all.arp_ignore", "value": 1}),
        ("sysctl", {"name": "net.ipv4.conf.all.arp_announce", "value": 2}),
        ("drop_caches", {}),
        ("ntp", {}),
    ):
        repair = remedies.plan(kind, args)
        privileged_lines = [argv for argv in repair.do if argv != remedies.SYNC]
        assert {privileged.absolute(argv) for argv in privileged_lines} <= known, kind
    assert not [line for line in known if line[0].endswith(("usermod", "sh", "python3", "systemctl"))]


@given(st.text(max_size=60))
def test_no_word_gets_in_that_could_mean_more(text: str) -> None:
    right = Right(name="x", argv=("/usr/bin/mount", text), verb="share", why="y")
    try:
        made = sudoers("spark", [right])
    except ConfigError:
        return
    line = made.splitlines()[2]
    assert len(made.splitlines()) == 3
    words = line.removeprefix("spark ALL=(root) NOPASSWD: /usr/bin/mount ")
    assert words.replace("\\", "") == text
    assert not set(text) & set(" \\*?[]!#\"'\n\t()^$")


@pytest.mark.parametrize(
    "program", ["mount", "/tmp/mount", "/usr/bin/../../tmp/x", "/usr/local/bin/x", "/usr/bin/a b"]
)
def test_a_program_that_is_not_the_systems_is_refused(program: str) -> None:
    with pytest.raises(ConfigError, match="no program of the system"):
        sudoers("spark", [Right(name="x", argv=(program, "a"), verb="v", why="w")])


@pytest.mark.parametrize("account", ["", "ALL", "%sudo", "spark ALL=(ALL) NOPASSWD: ALL\n#", "#0", "-x"])
def test_an_account_that_is_none_is_refused(account: str) -> None:
    with pytest.raises(ConfigError, match="cannot name this account"):
        sudoers(account, [])


@pytest.mark.parametrize(
    ("exports", "fstab"),
    [
        ("/ *(rw,no_root_squash)\n", ""),
        ("# sparkyard: x\n/a b(ro)\n/ *(rw)\n", ""),
        ("", "/dev/sda1 / ext4 defaults 0 0\n"),
        ("", "10.0.0.1:/a /etc nfs4 ro,nosuid,nodev,bg,nofail,_netdev 0 0 # sparkyard\n"),
        ("", "10.0.0.1:/a /var/lib/sparkyard/nfs nfs4 ro,bg,nofail,_netdev 0 0 # sparkyard\n"),
    ],
)
def test_a_node_cannot_send_other_lines_for_files_of_root(exports: str, fstab: str) -> None:
    listing = Listing(account="spark", root=False, rights=(), exports=exports, fstab=fstab)
    with pytest.raises(ConfigError, match="not of the form"):
        wanted("spark-1", listing)


def test_what_enroll_wrote_is_compared_before_it_is_used(tmp_path: Path) -> None:
    line = rights.fstab_line("10.0.0.1", "/a", "ro")
    place = tmp_path / "fstab"
    place.write_text("UUID=1 / ext4 defaults 0 1\n" + line)
    rights.enrolled_mount(line, place)
    with pytest.raises(rights.Refused, match=r"no line for this share \(10\.0\.0\.2:/a\).*enroll"):
        rights.enrolled_mount(rights.fstab_line("10.0.0.2", "/a", "ro"), place)
    assert nfs_text.without_ours(place.read_text()) == "UUID=1 / ext4 defaults 0 1\n"
