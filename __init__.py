"""One stream for model parameters: weights, rows, gradients and KV as versioned events.

This file is the list of public names and nothing else.
"""

from .brokers.broker import Broker, BrokerStatus
from .client import Client, TopicInfo, connect, restore
from .consistency.vector import VersionVector
from .consumers import torch as torch  # Not in `__all__`: `import *` must not hide torch itself.
from .consumers.events import Event, GradientSlice
from .consumers.lookups.hot import HotRows
from .consumers.lookups.serving import Serving, ServingCounters
from .consumers.processors.parameter_server import parameter_server
from .consumers.processors.processor import Processor, ProcessorStatus, TaskStatus, processor
from .consumers.processors.run import ProcessorRun
from .consumers.replica import Replica
from .consumers.snapshots.asked import SnapshotInfo
from .consumers.status import ReplicaStatus, Served, TableStatus, Unfinished
from .consumers.subscriber import Subscription
from .consumers.version_info import VersionInfo
from .consumers.views import Weights
from .errors import (
    AccessDenied,
    BackpressureTimeout,
    BindFailed,
    ConnectFailed,
    CorruptLog,
    CorruptTier,
    EventLost,
    Fenced,
    InvalidEvent,
    LogTruncated,
    NotDurable,
    OutcomeUnknown,
    ParamstreamError,
    ParamstreamTimeout,
    SchemaMismatch,
    StorageFull,
    TopicExists,
    UnknownTopic,
    VersionConflict,
    VersionNotHeld,
)
from .eventlog.kafka.settings import KafkaLog
from .events.tables import SGD, Adagrad, Adam, Normal, RowwiseAdagrad, Uniform
from .producers.output import Output
from .producers.publisher import Publisher
from .producers.receipt import Receipt
from .tiers.store import TieredStore

__all__ = [
    "AccessDenied",
    "Adagrad",
    "Adam",
    "BackpressureTimeout",
    "BindFailed",
    "Broker",
    "BrokerStatus",
    "Client",
    "ConnectFailed",
    "CorruptLog",
    "CorruptTier",
    "Event",
    "EventLost",
    "Fenced",
    "GradientSlice",
    "HotRows",
    "InvalidEvent",
    "KafkaLog",
    "LogTruncated",
    "Normal",
    "NotDurable",
    "OutcomeUnknown",
    "Output",
    "ParamstreamError",
    "ParamstreamTimeout",
    "Processor",
    "ProcessorRun",
    "ProcessorStatus",
    "Publisher",
    "Receipt",
    "Replica",
    "ReplicaStatus",
    "RowwiseAdagrad",
    "SGD",
    "SchemaMismatch",
    "Served",
    "Serving",
    "ServingCounters",
    "SnapshotInfo",
    "StorageFull",
    "Subscription",
    "TableStatus",
    "TaskStatus",
    "TieredStore",
    "TopicExists",
    "TopicInfo",
    "Unfinished",
    "Uniform",
    "UnknownTopic",
    "VersionConflict",
    "VersionInfo",
    "VersionNotHeld",
    "VersionVector",
    "Weights",
    "connect",
    "parameter_server",
    "processor",
    "restore",
]
