# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _daemon_config

PATH = "/etc/docker/daemon.json"
WANTED = {"exec-opts": ["native.cgroupdriver=cgroupfs"], "features": {"cdi": True}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", WANTED),
        ("  \n", WANTED),
        ("{}", WANTED),
        (
            '{"log-opts": {"max-size": "10m"}, "features": {"containerd-snapshotter": true}}',
            {
                "log-opts": {"max-size": "10m"},
                "features": {"containerd-snapshotter": True, "cdi": True},
                "exec-opts": ["native.cgroupdriver=cgroupfs"],
            },
        ),
        (
            '{"exec-opts": ["native.umask=normal"], "features": {"cdi": true}}',
            {"exec-opts": ["native.umask=normal", "native.cgroupdriver=cgroupfs"], "features": {"cdi": True}},
        ),
    ],
)
def test_what_is_wanted_is_added_to_what_is_there(text: str, expected: dict[str, t.Any]) -> None:
    merged = _daemon_config.merge(PATH, text, WANTED)
    assert json.loads(merged.text) == expected
    assert merged.conflicts == ()
    again = _daemon_config.merge(PATH, merged.text, WANTED)
    assert again.text == merged.text


def test_a_file_that_has_everything_keeps_its_layout() -> None:
    text = '{"features":{"cdi":true},   "exec-opts":["native.cgroupdriver=cgroupfs"]}'
    assert _daemon_config.merge(PATH, text, WANTED).text == text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"exec-opts": ["native.cgroupdriver=systemd"]}', "exec-opts"),
        ('{"features": {"cdi": false}}', "features.cdi"),
        ('{"features": []}', "features"),
    ],
)
def test_what_somebody_has_set_otherwise_is_a_conflict_and_stays(text: str, key: str) -> None:
    merged = _daemon_config.merge(PATH, text, WANTED)
    assert [one.key for one in merged.conflicts] == [key]
    kept = json.loads(text)
    assert {name: json.loads(merged.text)[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  "a": 1,\n}', f"{PATH}:3: it is not valid JSON"),
        ('{"a": 1', f"{PATH}:1: it is not valid JSON"),
        ("[]", f"{PATH}:1: it is no JSON object"),
        ("null", f"{PATH}:1: it is no JSON object"),
        ('{"a": 1, "a": 2}', "the key a twice"),
        ('{"a": {"b": 1, "b": 2}}', "the key b twice"),
        ("\x00", f"{PATH}:1: it is not valid JSON"),
    ],
)
def test_what_is_no_configuration_is_refused_by_its_place(text: str, words: str) -> None:
    with pytest.raises(_daemon_config.ConfigError) as error:
        _daemon_config.merge(PATH, text, WANTED)
    assert words in str(error.value)
