#!/usr/bin/env bash
# Packs what a GPU machine without network lacks into the folder .gpu, at most 45 MB: a trimmed Ray,
# wheels, MNIST, the commit, and the script that unpacks it all there.
#
#   DATA_ROOT=DIR benchmarks/pack_for_gpu.sh          # here: in the repository's root, 3 minutes
#   . .gpu/unpack.sh && python3 benchmarks/first_light.py --out OUT --data-root "$DATA_ROOT"   # there
#
# It needs pip, xz, and MNIST in torchvision's layout under DATA_ROOT (without it no MNIST is packed).
# PYTHON_THERE names the Python version of the GPU machine.
set -euo pipefail
data=$(realpath -m "${DATA_ROOT:-/nonexistent}")
cd "$(dirname "$0")/.."
there=${PYTHON_THERE:-3.12}
most=45000000
rm -rf .gpu
mkdir -p .gpu/wheels
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without them Onefold does not start, or cannot ask the driver for GPUs; the last four and Ray are for
# clients in processes of their own.
wheels=(tyro typeguard docstring-parser nvidia-ml-py submitit jsonschema jsonschema-specifications referencing rpds-py)
get() {
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$there" \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 -d "$@"
}
get .gpu/wheels "${wheels[@]}"
get "$work" ray

# The files keep their modes: Ray's programs must stay executable.
python3 - "$work" <<'EOF'
import os, pathlib, sys, zipfile

work = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(next(work.glob("ray-*.whl")))
for info in wheel.infolist():
    path = wheel.extract(info, work / "ray")
    if info.external_attr >> 16:
        os.chmod(path, info.external_attr >> 16 & 0o777)
EOF
cd "$work/ray"
rm -rf ray/jars ray/rllib ray/llm ray/serve ray/dashboard/client/build # of no use to a run
find . \( -name '*.map' -o -name '*.pyi' \) -delete
# A wide window: Ray's programs share most of their code.
tar --sort=name -cf - . | xz --lzma2=preset=9e,dict=256MiB > "$OLDPWD/.gpu/ray.tar.xz"
cd "$OLDPWD"

if [ -d "$data/MNIST/raw" ]; then
    mkdir -p "$work/data/MNIST/raw"
    for file in "$data"/MNIST/raw/*-ubyte*; do
        case $file in
            *.gz) gzip -dc "$file" > "$work/data/MNIST/raw/$(basename "$file" .gz)" ;;
            *) cp "$file" "$work/data/MNIST/raw/" ;;
        esac
    done
    tar -C "$work/data" -cf - MNIST | xz -9e > .gpu/mnist.tar.xz
fi
git describe --always --dirty > .gpu/commit

cat > .gpu/unpack.sh <<'EOF'
# To be sourced in the repository's root: unpacks into a folder of its own, and sets PYTHONPATH and
# DATA_ROOT. What is installed there already stays as it is.
onefold_there=${ONEFOLD_THERE:-/tmp/onefold-gpu}
mkdir -p "$onefold_there/site" "$onefold_there/data"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$onefold_there/site" .gpu/wheels/*.whl || return 1
onefold_untar() {
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$2"
}
onefold_untar .gpu/ray.tar.xz "$onefold_there/site" || return 1
if [ -f .gpu/mnist.tar.xz ]; then
    onefold_untar .gpu/mnist.tar.xz "$onefold_there/data" || return 1
    export DATA_ROOT=$onefold_there/data
fi
export PYTHONPATH=$onefold_there/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
EOF

size=$(du -sb .gpu | cut -f1)
echo "$size bytes in .gpu"
if [ "$size" -gt "$most" ]; then
    echo ".gpu has more than $most bytes" >&2
    exit 1
fi
