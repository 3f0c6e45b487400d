"""Types of values whose keys and types are known only when a file is read."""

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
"""An object of a JSON file."""
SettingValues = Mapping[str, Any]
"""Values of settings, by dotted name or nested, as YAML and a sweep have them."""
