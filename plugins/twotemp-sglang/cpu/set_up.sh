#!/bin/sh
# Create an environment in which SGLang runs on a CPU, and run check.py in it:
#
#   plugins/twotemp-sglang/cpu/set_up.sh ENVIRONMENT [engine] [server]
#
# SGLang's requirements are compiled for GPUs. It is installed without them (--no-deps) and needs the packages below to be
# imported, and two stubs (stubs/): for its kernels, which a CPU without AMX never calls, and for two operators of
# torchvision. SGLang pins torch 2.14.1; 2.13.0 also works and has a wheel for CPUs.
set -eu
environment=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [ ! -e "$environment/ready" ]; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --constraint "$root/constraints.txt" torch==2.13.0
    "$environment/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 tokenizers==0.23.2 triton==3.9.0 \
        numpy aiohttp fastapi uvicorn uvloop pyzmq msgspec orjson psutil requests setproctitle pybase64 pillow \
        python-multipart prometheus-client partial_json_parser interegular xxhash einops packaging regex \
        sentencepiece==0.2.1 tiktoken tqdm IPython nvidia-ml-py openai==2.8.0 openai-harmony==0.0.4 cloudpickle dill \
        pydantic watchfiles typer rich PyYAML zstandard safetensors jinja2 jsonschema anthropic soundfile==0.13.1
    "$environment/bin/pip" install --quiet --no-deps sglang==0.5.23 torchvision==0.28.0 apache-tvm-ffi==0.1.11 \
        compressed-tensors==0.18.0 loguru gguf blobfile==3.0.0 xgrammar==0.2.7 llguidance outlines==0.1.11
    # Editable installs have the entry points by which SGLang and twotemp find the plug-in.
    "$environment/bin/pip" install --quiet --no-deps --editable "$root" --editable "$here/.."
    touch "$environment/ready"
fi
PYTHONPATH="$here/stubs" SGLANG_USE_CPU_ENGINE=1 exec "$environment/bin/python" "$here/check.py" "$@"
