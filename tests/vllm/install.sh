#!/bin/sh
# Install the CPU build of vLLM and link to it. It is kept outside the checkout, in a folder named by a hash of what
# goes into it, so that fresh clones reuse it. The project itself is not installed there: PYTHONPATH names the clone.
# Usage: install.sh PYTHON LINK [PIP_OPTION ...]
set -eu
python=$1 link=$2
shift 2
pins=$(dirname "$0")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/touche-llm
hash=$("$python" -c '
import hashlib, sys
content = [sys.version.encode(), *(open(name, "rb").read() for name in sys.argv[1:])]
print(hashlib.sha256(b"\0".join(content)).hexdigest()[:12])
' "$pins/requirements.txt" "$pins/distribution/pyproject.toml" "$0")
folder=$cache/vllm-$hash

# The pins are complete, and without --no-deps pip fetches CUDA builds.
pip_install() {
    "$folder/bin/python" -m pip --disable-pip-version-check -qq install --no-deps "$@"
}

mkdir -p "$cache"
(
    flock 9
    if [ ! -e "$folder/.installed" ]; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
        pip_install --no-compile "$@" --requirement "$pins/requirements.txt"
        cp -r "$pins/distribution" "$folder/distribution"
        pip_install --no-build-isolation "$folder/distribution"
        # Once, or each of vLLM's processes compiles at every start. Some files are templates, which fail to compile.
        "$folder/bin/python" -m compileall -qq -j 0 "$folder/lib" || true
        touch "$folder/.installed"
    fi
) 9>"$folder.lock"
# A folder, not a link, is one that an earlier version of the project installed.
[ -L "$link" ] || rm -rf "$link"
ln -sfn "$folder" "$link"
