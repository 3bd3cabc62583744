# Sourced by scripts/edgespec and scripts/test, which set $root: makes .venv where it is missing or out of date.

# venv_is_ready: true in a few milliseconds when .venv was installed from this pyproject.toml and scripts/llama, here,
# for this backend, with this compiler, with or without RPC.
venv_is_ready() {
    installed=$root/.venv/installed
    [ -x "$root/.venv/bin/python" ] && cmp -s "$root/pyproject.toml" "$installed/pyproject.toml" || return 1
    read -r home <"$installed/root" && [ "$home" = "$root" ] || return 1
    diff -r "$root/scripts/llama" "$installed/llama" >/dev/null 2>&1 || return 1
    read -r backend <"$installed/backend" && [ "${EDGESPEC_BACKEND:-$backend}" = "$backend" ] || return 1
    read -r compiler <"$installed/compiler" && [ "${EDGESPEC_COMPILER:-$compiler}" = "$compiler" ] || return 1
    read -r rpc <"$installed/rpc" && [ "${EDGESPEC_RPC:-$rpc}" = "$rpc" ]
}

# make_venv [--dev]: the work itself, in Python; says what it does on stderr.
make_venv() {
    # The second round is for a Python without ensurepip: bootstrap.py then says how to get it.
    for modules in "venv, ensurepip" "sys"; do
        for python in "${EDGESPEC_PYTHON-}" python3.14 python3.13 python3.12 python3.11 python3 python; do
            [ -n "$python" ] || continue
            # Found is not enough: version managers put names on PATH that only print an error.
            "$python" -c "import sys, $modules; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1 || continue
            "$python" "$root/scripts/bootstrap.py" "$@" </dev/null
            return
        done
    done
    echo "edgespec needs Python 3.11 or newer, and none was found on PATH (tried python3.14 to python3.11, python3)." >&2
    echo "Install one from https://www.python.org/downloads/ or your package manager, or set EDGESPEC_PYTHON to it." >&2
    return 1
}
