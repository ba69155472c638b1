"""The plugin manager: loads plugins, calls their hooks, and attributes errors to plugins.

A plugin that raises, returns invalid results or requires another API is quarantined: its records
are dropped, `broken` has the reason, and the other plugins are unaffected. If two plugins claim
the same thing, both stay, and looking it up raises an error that names both.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from time import perf_counter
from traceback import walk_tb
from types import ModuleType
from typing import Any, cast

import pluggy

from ostro.core import env, hooks
from ostro.core.errors import ModelNotFound, PluginError, UnsupportedArchitecture, nearest
from ostro.core.plugins import discovery
from ostro.core.plugins.conflicts import Claims, RecordClaim, conflict
from ostro.core.plugins.discovery import Candidate
from ostro.core.plugins.isolation import isolate, message_of, reason
from ostro.core.plugins.kinds import KINDS
from ostro.core.records import API, Architecture, Files
from ostro.core.results import InvalidResult
from ostro.core.settings import Settings

log = logging.getLogger(__name__)

HOOKS = tuple(name for name in vars(hooks) if name.startswith(hooks.PREFIX))
ROUTES_NOTE = "only a running server knows its routes: ostro_routes has a deprecated argument"
"""What is said about the plugins in `deprecated_routes`."""
SLOW_IMPORT = 1.0
"""Seconds for importing a plugin beyond which a warning is logged."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A quarantined plugin, with the reason and the exception."""

    name: str
    source: str
    reason: str
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """One line of `ostro plugins`. `status` is active, conflict, broken or disabled.

    `offers` are the names of its records by kind. `note` says which of them are missing there.
    """

    name: str
    version: str
    source: str
    status: str
    reason: str = ""
    hooks: tuple[str, ...] = ()
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""


class _IsolatedHooks:
    """The object registered with pluggy for a plugin: its hooks only, each isolated."""


class PluginManager(pluggy.PluginManager):
    """All plugins of this process and their records."""

    def __init__(self) -> None:
        super().__init__("ostro")
        self.add_hookspecs(hooks)
        self.broken: dict[str, Broken] = {}
        self.disabled: dict[str, str] = {}
        self._found: dict[str, Candidate] = {}
        self._packages: dict[str, str] = {}
        self._claims = Claims()
        self._registry: dict[str, str] = {}
        self._trace = env.TRACE_PLUGINS.read()

    def load(self, settings: Settings | None = None, paths: Iterable[str | Path] = ()) -> None:
        """Find, import and register all plugins; then call `ostro_configure` with the settings.

        Built-in plugins are registered first: pluggy calls the hooks registered last first.
        `paths` are plugins that are not installed. Raises UsageError for a path without a plugin.
        """
        given = {candidate.source: candidate for candidate in map(discovery.from_path, paths)}
        for candidate in chain(discovery.built_in(), discovery.installed(), given.values()):
            self._admit(candidate)
        for hint in (*env.misspelled(), *_unknown_names(self._found)):
            log.warning("%s", hint)
        unused = self.disabled.keys() | self.broken.keys()
        self._registry = {
            name: f"{self.source(name)}, {'not in use' if name in unused else 'in use'}"
            for name in sorted(self._found)
        }
        if settings is not None:
            self.hook.ostro_configure.call_historic(kwargs={"settings": settings})

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register a plugin's hooks, each isolated. Raises PluginError for unknown hooks."""
        name = name or self.get_canonical_name(plugin)
        self._packages[package_of(plugin)] = name
        self._found.setdefault(name, Candidate(name=name, source="registered", load=lambda: plugin))
        registered = super().register(self._isolated(plugin, name), name)
        if name in self.broken:
            self.unregister(name=name)
        return registered

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """The options of a hook; attributes without the prefix `ostro_` are never accessed."""
        return super().parse_hookimpl_opts(plugin, name) if _is_hook(name) else None

    def quarantine(self, name: str, error: BaseException) -> None:
        """Stop using a plugin: remove its hooks and records, and store the reason.

        Records that were collected before may be in use, in this process and in another one. They
        stay in use until a restart; the log names them.
        """
        if self.get_plugin(name) is not None:
            self.unregister(name=name)
        collected = self._claims.declared_by(name)
        self._claims.drop(name)
        source, why = self.source(name), reason(error)
        self.broken[name] = Broken(name=name, source=source, reason=why, error=error)
        if collected:
            kinds = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in collected.items())
            log.warning(
                "plugin %s (%s) is not used from now on: %s. Its records that are in use stay in "
                "use until a restart, in this process (%s) and in others; disable it with %s=%s",
                *(name, source, why, kinds, env.DISABLE_PLUGINS.name, name),
            )
        else:
            log.warning("plugin %s (%s) is not used: %s", name, source, why)
        log.debug("plugin %s raised", name, exc_info=error)

    def collect(self, kind: str, **arguments: object) -> dict[str, Any]:
        """The records of one kind by name, those of built-in plugins first: to list them.

        Names in conflict are omitted; `find` raises for them. The hook is called only once, except
        with the deprecated `arguments` of `ostro_routes`, which a server has. Without them, the
        plugins in `deprecated_routes` are left out.
        """
        active = self._collect(kind, **arguments).active(kind)
        return {name: claims[0].record for name, claims in active.items() if len(claims) == 1}

    def find(self, kind: str, name: str) -> Any | None:
        """The record of that name, None if there is none. Raises PluginError for a conflict."""
        claims = self._collect(kind).active(kind).get(name, [])
        if len(claims) > 1:
            raise conflict(kind, repr(name), claims)
        return claims[0].record if claims else None

    def get(self, kind: str, name: str) -> Any:
        """The record of that name. Raises PluginError if there is none, or a conflict."""
        if (record := self.find(kind, name)) is None:
            near = nearest(name, self._collect(kind).active(kind))
            raise PluginError(f"no plugin offers {name!r} among the {kind}{near}{self._unused()}")
        return record

    def conflicts(self, kind: str) -> dict[str, str]:
        """The messages of the errors of the names of a kind that are in conflict, by name."""
        active = self._collect(kind).active(kind)
        return {
            name: str(conflict(kind, repr(name), claims))
            for name, claims in active.items()
            if len(claims) > 1
        }

    def claimant(self, kind: str, claims: Callable[[Any], bool], what: str) -> Any | None:
        """The one record of a kind for which `claims(record)` is true, or None.

        `what` names the claimed thing in the PluginError for a conflict. A plugin whose `claims`
        raises is quarantined.
        """
        # Quarantine changes the active claims, so repeat until no further plugin breaks.
        broken, found = -1, list[RecordClaim]()
        while broken != len(self.broken):
            broken = len(self.broken)
            found = self._collect(kind).claiming(kind, lambda claim: self._matches(claims, claim))
        if len(found) > 1:
            raise conflict(kind, what, found)
        return self.get(kind, found[0].record.name) if found else None

    def architecture_for(
        self,
        classes: Sequence[str] = (),
        *,
        gguf: str | None = None,
        files: Files | None = None,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Architecture:
        """The architecture `name`, or the architecture that claims a model.

        A model is identified by the classes in its config, by its GGUF architecture, or without
        either by its folder. Raises UnsupportedArchitecture if no plugin claims it, PluginError if
        two plugins claim it.
        """
        offered = self._collect("architectures").active("architectures")
        if name is not None:
            if name not in offered:
                near = nearest(name, offered)
                raise UnsupportedArchitecture(
                    f"no plugin offers the architecture {name!r}{near}{self._unused()}"
                )
            return cast(Architecture, self.get("architectures", name))
        tests = {f"the class {cls!r}": _lists("classes", cls) for cls in classes}
        if gguf is not None:
            tests[f"the GGUF architecture {gguf!r}"] = _lists("gguf", gguf)
        if files is not None and not tests:
            raw = config or {}
            what = f"the folder {files.root}, whose config names no class"
            if kind := raw.get("model_type"):
                what += (
                    f' (model_type {kind!r:.80}; name the class of the weights in "architectures")'
                )
            tests[what] = lambda record: bool(record.claims and record.claims(files, raw))
        for what, claims in tests.items():
            if found := self.claimant("architectures", claims, what):
                return cast(Architecture, found)
        raise self._unsupported(" or ".join(tests) or "a model without a name", [*classes, gguf])

    def locate(self, reference: str, settings: Settings, kind: str = "model") -> Path:
        """The local file or folder of a reference. Raises ModelNotFound if no plugin finds it.

        Raises PluginError for an alias in conflict.
        """
        self.find("aliases", reference)
        found = self.hook.ostro_locate(reference=reference, kind=kind, settings=settings)
        if found is None:
            raise ModelNotFound(
                f"{kind} {reference!r} not found: it is not a file, a folder, an alias or "
                f"an org/name[@revision][:selector]{self._unused()}"
            )
        return cast(Path, found)

    def source(self, name: str) -> str:
        """The source of a plugin: "built in", "wheel 1.2", or its path."""
        return self._found[name].source if name in self._found else "unknown"

    def explain(self, error: BaseException) -> str:
        """Describe an error on one line: type, message, notes and the plugins of its traceback.

        Plugins are listed innermost first, with their versions if known.
        """
        notes = dict.fromkeys(getattr(error, "__notes__", ()))
        where = "".join(f" in {note.removeprefix('raised in ')}" for note in notes)
        callers: dict[str, str] = {}
        if isinstance(error, InvalidResult) and (plugin := self.plugin_in(error.module)):
            callers[plugin] = plugin
        for frame, line in reversed(list(walk_tb(error.__traceback__))):
            if plugin := self.plugin_in(frame.f_globals.get("__name__", "")):
                place = f"{Path(frame.f_code.co_filename).name}:{line}"
                callers.setdefault(plugin, f"{plugin}, {place}")
        if callers:
            where += f" (plugin {', called by '.join(callers.values())})"
        return f"{type(error).__name__}: {message_of(error)}{where}"

    def plugin_in(self, module: str) -> str | None:
        """The plugin that a module belongs to, by its innermost package: "starcoder2 1.0"."""
        while module and module not in self._packages:
            module = module.rpartition(".")[0]
        if (plugin := self._packages.get(module)) is None:
            return None
        return f"{plugin} {self._found[plugin].version}".strip()

    def origin(self, kind: str, name: str) -> str:
        """The plugin that declared a record, for messages: "plugin starcoder2 (wheel 1.0)"."""
        claims = self._collect(kind).active(kind).get(name, [])
        return " and ".join(f"plugin {claim.plugin} ({claim.source})" for claim in claims)

    def deprecated_routes(self) -> list[str]:
        """The plugins whose `ostro_routes` has an argument: these are deprecated."""
        impls = self.hook.ostro_routes.get_hookimpls()
        return [impl.plugin_name for impl in impls if impl.argnames]

    def describe(self) -> list[PluginInfo]:
        """Describe every plugin that was found: its records, or why it is not used."""
        for kind in KINDS:
            self._collect(kind)
        conflicts = self._claims.conflicts()
        return [self._describe(candidate, conflicts) for candidate in self._found.values()]

    def registry(self) -> dict[str, str]:
        """Source and state of every plugin, by name: plain data to compare between processes."""
        return {"api": ".".join(map(str, API)), **self._registry}

    def digest(self) -> str:
        """A hash of the registry; equal in processes that loaded the same plugins."""
        return hashlib.sha256(json.dumps(self.registry()).encode()).hexdigest()

    def compare(self, theirs: Mapping[str, str]) -> None:
        """Raise PluginError with the first difference from the registry of another process."""
        ours = self.registry()
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(name, "absent"), theirs.get(name, "absent")
            if mine != other:
                raise PluginError(
                    f"two processes loaded different plugins: {name} is {mine} in one and {other} "
                    "in the other; "
                    "start both in one environment, with the same --plugin options"
                )

    def _admit(self, candidate: Candidate) -> None:
        """Import and register one plugin, unless it is disabled or refused."""
        if candidate.name in self._found:
            origin = candidate.wheel or candidate.source
            candidate = replace(candidate, name=f"{candidate.name}@{origin}")
        name = candidate.name
        self._found[name] = candidate
        if why := _disabled_reason(candidate):
            self.disabled[name] = why
            return
        start = perf_counter()
        try:
            if candidate.refusal:
                raise PluginError(candidate.refusal)
            plugin = candidate.load()
            if candidate.built_in and not any(map(_is_hook, dir(plugin))):
                del self._found[name]
            else:
                self.register(plugin, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.quarantine(name, error)
        if (seconds := perf_counter() - start) > SLOW_IMPORT:
            log.warning("plugin %s took %.1f s to import", name, seconds)

    def _isolated(self, plugin: object, name: str) -> object:
        """The plugin's hooks, isolated. Raises PluginError for unknown or unmarked hooks."""
        wrapped = _IsolatedHooks()
        for attribute in dir(plugin):
            if not _is_hook(attribute):
                continue
            options = self.parse_hookimpl_opts(plugin, attribute)
            if options is None and attribute in HOOKS:
                raise PluginError(f"{attribute} is not marked with @hookimpl")
            if options is None:
                continue
            hook = options.get("specname") or attribute
            if hook not in HOOKS and not options.get("optionalhook"):
                raise PluginError(f"unknown hook {hook}{nearest(hook, HOOKS, n=1)}")
            if options.get("wrapper") or options.get("hookwrapper"):
                raise PluginError(f"{attribute} is a hook wrapper, which is not supported")
            function = getattr(plugin, attribute)
            call = isolate(function, hook, name, on_error=self.quarantine, trace=self._trace)
            setattr(wrapped, attribute, call)
        if not vars(wrapped):
            raise PluginError("it implements no hook; docs/hooks.md lists them")
        return wrapped

    def _collect(self, kind: str, **arguments: object) -> Claims:
        """The claims of one kind; calls the declaration hook of all plugins the first time."""
        if kind not in KINDS:
            raise PluginError(f"unknown kind of record {kind!r}{nearest(kind, KINDS)}")
        if arguments or kind not in self._claims:
            found = []
            for impl in getattr(self.hook, hooks.PREFIX + kind).get_hookimpls():
                if not arguments.keys() >= {*impl.argnames}:
                    continue
                records = impl.function(*(arguments[name] for name in impl.argnames)) or ()
                plugin, source = impl.plugin_name, self.source(impl.plugin_name)
                found += [RecordClaim(record, plugin, source) for record in records]
            self._claims.add(kind, (claim for claim in found if claim.plugin not in self.broken))
        return self._claims

    def _matches(self, test: Callable[[Any], bool], claim: RecordClaim) -> bool:
        try:
            return bool(test(claim.record))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.quarantine(claim.plugin, error)
            return False

    def _unsupported(self, what: str, names: Sequence[str | None]) -> UnsupportedArchitecture:
        records = self.collect("architectures").values()
        offered = [name for record in records for name in (*record.classes, *record.gguf)]
        near = next((hint for name in names if name and (hint := nearest(name, offered))), "")
        return UnsupportedArchitecture(
            f"no plugin claims {what}{near}. `ostro models` lists the {len(records)} installed "
            "architectures; others need a wheel (pip install ostro-arch-NAME), a new plugin "
            "(ostro plugin new NAME) or, for a class, a transformers that has it as a causal "
            f"language model{self._unused()}"
        )

    def _unused(self) -> str:
        """The broken plugins, as the end of a message: one may provide what was not found."""
        if not self.broken:
            return ""
        named = ", ".join(list(self.broken)[:3]) + (", ..." if len(self.broken) > 3 else "")
        return f". Broken plugins: {named}; `ostro plugins` shows why"

    def _describe(self, candidate: Candidate, conflicts: dict[str, list[str]]) -> PluginInfo:
        name = candidate.name
        status, why = "active", ""
        if name in self.disabled:
            status, why = "disabled", self.disabled[name]
        elif name in self.broken:
            status, why = "broken", self.broken[name].reason
        elif name in conflicts:
            status, why = "conflict", "; ".join(conflicts[name])
        plugin = self.get_plugin(name)
        return PluginInfo(
            name=name,
            version=candidate.version,
            source=candidate.source,
            status=status,
            reason=why,
            hooks=tuple(vars(plugin)) if plugin else (),
            offers=self._claims.declared_by(name),
            note=ROUTES_NOTE if name in self.deprecated_routes() else "",
        )


@cache
def installed_plugins() -> PluginManager:
    """The built-in and installed plugins of this process, for callers without a manager."""
    plugins = PluginManager()
    plugins.load()
    return plugins


def package_of(plugin: object) -> str:
    """The package that contains a plugin's code, or its module if there is no package."""
    module = plugin if isinstance(plugin, ModuleType) else sys.modules[type(plugin).__module__]
    return module.__package__ or module.__name__


def _is_hook(name: str) -> bool:
    return name.startswith(hooks.PREFIX)


def _lists(field: str, name: str) -> Callable[[Architecture], bool]:
    """Test whether an architecture lists a name in one of its fields."""
    return lambda record: name in getattr(record, field)


def _unknown_names(found: Mapping[str, Candidate]) -> Iterable[str]:
    """Warnings for names in the environment variables that match no plugin."""
    wheels = {candidate.wheel for candidate in found.values()}
    for variable in (env.DISABLE_PLUGINS, env.PLUGINS):
        for name in sorted((variable.read() or frozenset()) - {"*", *found, *wheels}):
            yield f"{variable.name}: no plugin {name}{nearest(name, found, n=1)}"


def _disabled_reason(candidate: Candidate) -> str | None:
    """Why the environment variables disable a plugin, or None."""
    names = {candidate.name, candidate.wheel} - {""}
    off, only = env.DISABLE_PLUGINS.read(), env.PLUGINS.read()
    if names & off or ("*" in off and not candidate.built_in):
        return f"disabled by {env.DISABLE_PLUGINS.name}"
    if only is not None and candidate.wheel and not names & only:
        return f"not listed in {env.PLUGINS.name}"
    return None
