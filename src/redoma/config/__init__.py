"""Configuration: the only reader of files and environment. It produces one frozen `Config`.

    redoma.yaml ─▶ places ─▶ document ─▶ reader ─▶ schema ─▶ layers ─▶ model.Config
                   bytes     tree with   typed     one file's  merged
                             lines       values    `Layer`

`layers` merges the files and decides what a file that was only found may do; `trusted` stores what the user has
allowed. Without a file only `places` has work to do.
"""

from __future__ import annotations

from .layers import check as check
from .layers import describe as describe
from .layers import load as load
from .layers import loosenings as loosenings
from .layers import proposed as proposed
from .layers import trust as trust
from .layers import with_log as with_log
from .model import ApprovalConfig as ApprovalConfig
from .model import AuditConfig as AuditConfig
from .model import Config as Config
from .model import DockerConfig as DockerConfig
from .model import DockerEntry as DockerEntry
from .model import Entry as Entry
from .model import InvalidFile as InvalidFile
from .model import JailConfig as JailConfig
from .model import JailEntry as JailEntry
from .model import LanguageConfig as LanguageConfig
from .model import LogConfig as LogConfig
from .model import MontyEntry as MontyEntry
from .model import NativeEntry as NativeEntry
from .model import NetworkConfig as NetworkConfig
from .model import PolicyConfig as PolicyConfig
from .model import Problem as Problem
from .model import ServerConfig as ServerConfig
from .model import SessionsConfig as SessionsConfig
from .model import printable as printable
from .places import home as home
from .places import not_ours as not_ours
from .places import project_file as project_file
from .places import service_key as service_key
from .places import state_directory as state_directory
from .trusted import trusted_files as trusted_files
from .trusted import untrust as untrust
