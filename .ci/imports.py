"""Import every module of ostro, and load every plugin: what a new Python breaks first."""

import importlib
import pkgutil
import sys

import ostro
from ostro.core.plugins.manager import installed_plugins

modules = [module.name for module in pkgutil.walk_packages(ostro.__path__, "ostro.")]
for name in modules:
    if not name.endswith("__main__"):
        importlib.import_module(name)
plugins = installed_plugins().describe()
print(f"imported {len(modules)} modules, loaded {len(plugins)} plugins on Python {sys.version}")
if broken := [f"{plugin.name}: {plugin.reason}" for plugin in plugins if plugin.status == "broken"]:
    sys.exit("\n".join(broken))
