# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The job of the box's program that soaks an instance: from a request to a report and a verdict in the deploy record.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import os
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _deploy_record,
    _instance,
    _openai_api,
    _soak,
    _soak_engine,
    _soak_report,
    _status,
)

# A file with a secret environment, the name of a variable -> its value, empty where it has none.
Secret = c.Callable[[str, str], str]


class Announce(t.Protocol):
    """Says a line to the journal, and keeps it where the modules read it."""

    def __call__(self, status: _status.StatusFile, stage: str, message: str, *, failed: bool = False) -> None: ...


def run(text: str, announce: Announce, secret: Secret) -> int:
    """Soak an instance, leave the report where the vllm_soak module reads it, and the verdict in the deploy record."""
    request = _soak.from_json(text)
    name = _status.job_name("soak", request.job)
    status = _status.StatusFile(name)
    try:
        settings = _instance.settings(request.instance) if request.instance else {}
        if request.instance and not settings:
            raise _soak.SoakError(f"this box has no instance {request.instance}; deploy it first")
        api_key = os.environ.get("VLLM_API_KEY", "")
        if settings:
            request = _soak.of_instance(request, settings)
            if _soak_engine.switch_under_way():
                hint = "site.yml ends one that was cut short"
                raise _soak.SoakError(f"a switch of this box is under way; soak it when that has ended ({hint})")
            api_key = secret(settings["secrets_file"], "VLLM_API_KEY")
        report = _soak.Soak(request, api_key=api_key, tell=lambda line: announce(status, "soak", line)).run()
        if settings:
            report |= _deploy_record.keep_soak(request.instance, settings, report, at=time.time())
        _soak.leave(report, name)
    except (_soak.SoakError, _openai_api.InputError, OSError) as error:
        announce(status, "soak", str(error), failed=True)
        return 1
    announce(status, _status.DONE, _soak_report.summary(report))
    return 0
