# Sourced by the scripts of this folder, which set $root: creates .venv if it is missing or out of date, and finds Python.

# venv_is_ready: true within milliseconds if .venv was made from this pyproject.toml and scripts/llama, in this folder,
# for this backend.
venv_is_ready() {
    installed=$root/.venv/installed
    [ -x "$root/.venv/bin/python" ] && cmp -s "$root/pyproject.toml" "$installed/pyproject.toml" || return 1
    read -r home <"$installed/root" && [ "$home" = "$root" ] || return 1
    diff -r "$root/scripts/llama" "$installed/llama" >/dev/null 2>&1 || return 1
    read -r backend <"$installed/backend" && [ "${EDGESPEC_BACKEND:-$backend}" = "$backend" ]
}

# make_venv [--dev]: creates or updates .venv, with progress on stderr.
make_venv() {
    run_python "$root/scripts/bootstrap.py" "$@"
}

# run_python SCRIPT...: runs a script with a Python that edgespec supports.
run_python() {
    if [ -n "${EDGESPEC_PYTHON-}" ]; then
        if "$EDGESPEC_PYTHON" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then
            "$EDGESPEC_PYTHON" "$@" </dev/null
            return
        fi
        echo "EDGESPEC_PYTHON=$EDGESPEC_PYTHON is not a Python 3.11 or newer." >&2
        return 1
    fi
    # The second round finds a Python without ensurepip, for which bootstrap.py prints what to install.
    for modules in "venv, ensurepip" "sys"; do
        for python in python3.14 python3.13 python3.12 python3.11 python3 python; do
            # Version managers put commands on PATH that only print an error.
            "$python" -c "import sys, $modules; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1 || continue
            "$python" "$@" </dev/null
            return
        done
    done
    echo "edgespec needs Python 3.11 or newer, and none was found on PATH (tried python3.14 to python3.11, python3)." >&2
    echo "Install one from https://www.python.org/downloads/ or your package manager, or set EDGESPEC_PYTHON to it." >&2
    return 1
}
