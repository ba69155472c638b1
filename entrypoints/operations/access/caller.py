"""The caller of an operation: an API key with its permissions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from ostro.core.errors import OstroError
from ostro.core.routes import Scope


class Forbidden(OstroError):
    """The caller lacks a permission, or a model or adapter is not on its list."""

    status = 403
    code = "forbidden"


class AdminKeyRequired(Forbidden):
    """The caller's key lacks the scope "admin"."""

    code = "admin_key_required"


class AdminKeyInvalid(OstroError):
    """A caller without a key uses a route that requires the scope "admin"."""

    status = 401
    code = "invalid_admin_key"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An API key and its permissions. The default is the caller of a server without keys.

    name      the name of the key, "" without keys; owner of what is stored
    scopes    the scopes of the routes that it may use
    models    the models that it may use, None for all
    adapters  the names and generations of adapters that it may use, None for all
    priority  the best priority that its requests get; as in `TokenRequest` a lower number is first
    salt      callers with different salts share no blocks of the prefix cache
    """

    name: str = ""
    scopes: frozenset[Scope] = frozenset({"open", "infer", "admin", "metrics"})
    models: frozenset[str] | None = None
    adapters: frozenset[str] | None = None
    priority: int | None = None
    salt: str = ""

    def require(self, scope: Scope) -> None:
        """Raise Forbidden or AdminKeyInvalid unless the caller may use routes of a scope."""
        if scope == "open" or scope in self.scopes:
            return
        if scope != "admin":
            raise Forbidden(f"this API key lacks the scope {scope!r}")
        if self.name:
            raise AdminKeyRequired("this API key lacks the scope 'admin'; use that of --admin-key")
        raise AdminKeyInvalid(
            "the admin key is missing or invalid; send it as Authorization: Bearer KEY"
        )

    def may_use(self, model: str) -> bool:
        """Whether the caller may use a model."""
        return self.models is None or model in self.models

    def may_apply(self, adapter: str) -> bool:
        """Whether the caller may use an adapter, by its name or generation."""
        return self.adapters is None or adapter in self.adapters

    def check(self, model: str, adapters: Iterable[str] = (), *, asked: str | None = None) -> None:
        """Raise Forbidden unless the caller may use a model, and adapters by name or generation.

        asked: the name in the request if it is another one, such as an alias. The error contains
        this name, and not that of a model which the caller may not use.
        """
        if not self.may_use(model):
            name = model if asked is None else asked
            raise Forbidden(f"this API key may not use the model {name!r:.100}", param="model")
        for adapter in adapters:
            if not self.may_apply(adapter):
                raise Forbidden(
                    f"this API key may not use the adapter {adapter!r:.100}", param="adapters"
                )

    def bounded_priority(self, requested: int | None) -> int:
        """The priority of a request that states `requested`; no better than the caller's."""
        if self.priority is None:
            return requested or 0
        return self.priority if requested is None else max(requested, self.priority)

    def salted(self, salt: str | None) -> str:
        """The cache salt of a request that states `salt`, combined with the caller's."""
        if not self.salt:
            return salt or ""
        return hashlib.sha256(f"{self.salt}\0{salt or ''}".encode()).hexdigest()


ANYONE = Caller()
"""The caller of a server without keys, and of Python and the command line."""
