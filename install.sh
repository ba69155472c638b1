#!/bin/sh
# Install ostro in a virtual environment of its own.
#
#   sh install.sh                          # ostro, in ~/.local/share/ostro, linked in ~/.local/bin
#   OSTRO_VENV=.venv sh install.sh -e .    # the package in this folder, in .venv
#
# Arguments are requirements of `pip install`; `-c FILE` before them constrains versions. The script
# needs no other file. It needs Python 3.11 or newer with venv. Variables:
#
#   PYTHON        the Python to use; otherwise the first suitable one of python3, python3.13, ...
#   OSTRO_VENV    the folder of the environment
#   OSTRO_TORCH   the build of torch, a value of `uv pip install --torch-backend`: auto, cpu, cu130
#
# By default uv selects the build of torch: the CPU build without an NVIDIA or AMD device. If uv
# cannot be installed or cannot fetch that build, pip installs its default build: on Linux, with
# several GB of CUDA libraries.
set -eu

main() {
  constraints=
  if [ "${1-}" = -c ]; then
    constraints=$2
    shift 2
  fi
  [ $# -gt 0 ] || set -- ostro
  python=$(find_python)
  venv=${OSTRO_VENV:-$HOME/.local/share/ostro}
  "$python" -m venv "$venv"
  install_torch
  "$venv/bin/python" -m pip install --quiet ${constraints:+-c "$constraints"} "$@"
  [ -n "${OSTRO_VENV-}" ] || link_command
}

# Print the path of a Python that is new enough.
find_python() {
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  echo "install.sh: ostro needs Python 3.11 or newer, found none as ${PYTHON:-python3};" \
    "install it, or set PYTHON to its path" >&2
  return 1
}

# Install the build of torch for this machine in the environment.
install_torch() {
  backend=${OSTRO_TORCH:-auto}
  build="chosen by uv --torch-backend $backend"
  if [ "$backend" != auto ]; then
    uv_install
  elif ! uv_install 2>/dev/null; then
    build="pip's default build: uv could not fetch the one for this machine's devices"
    "$venv/bin/python" -m pip install --quiet ${constraints:+-c "$constraints"} torch
  fi
  version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))')
  echo "torch $version, $build"
}

uv_install() {
  uv=$(command -v uv) || {
    "$venv/bin/python" -m pip install --quiet ${constraints:+-c "$constraints"} uv
    uv=$venv/bin/uv
  }
  UV_HTTP_RETRIES=1 "$uv" pip install --quiet --python "$venv/bin/python" \
    ${constraints:+-c "$constraints"} --torch-backend "$backend" torch
}

# Make the command `ostro` available to the user's shell.
link_command() {
  mkdir -p "$HOME/.local/bin"
  ln -sf "$venv/bin/ostro" "$HOME/.local/bin/ostro"
  echo "installed $HOME/.local/bin/ostro; try: ostro run"
  case ":$PATH:" in
    *":$HOME/.local/bin:"*) ;;
    *) echo "add $HOME/.local/bin to PATH" ;;
  esac
}

# The whole script is read before it runs, so that an interrupted download does nothing.
main "$@"
