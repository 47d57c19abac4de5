"""Configuration: the only reader of files and environment, down to one frozen `Config`.

    redoma.yaml ─▶ places ─▶ document ─▶ reader ─▶ schema ─▶ layers ─▶ model.Config
                   bytes     tree with   typed     one file's  merged
                             lines       values    `Layer`

`layers` puts the files on top of each other and decides what a file that was only found may do; `trusted` remembers
what the user has allowed. Without a file only `places` has work to do.
"""

from __future__ import annotations

from .layers import check, describe, load, loosenings, proposed, trust, with_log
from .model import (
    ApprovalConfig,
    AuditConfig,
    Config,
    DockerConfig,
    DockerEntry,
    Entry,
    InvalidFile,
    JailConfig,
    JailEntry,
    LogConfig,
    MontyEntry,
    NativeEntry,
    PolicyConfig,
    Problem,
    printable,
)
from .places import home, not_ours, project_file, state_directory
from .trusted import trusted_files, untrust

__all__ = [
    "ApprovalConfig",
    "AuditConfig",
    "Config",
    "DockerConfig",
    "DockerEntry",
    "Entry",
    "InvalidFile",
    "JailConfig",
    "JailEntry",
    "LogConfig",
    "MontyEntry",
    "NativeEntry",
    "PolicyConfig",
    "Problem",
    "check",
    "describe",
    "home",
    "load",
    "loosenings",
    "not_ours",
    "printable",
    "project_file",
    "proposed",
    "state_directory",
    "trust",
    "trusted_files",
    "untrust",
    "with_log",
]
