#!/usr/bin/env bash
# From nothing to an exported encoder and the nearest neighbours of a few sentences.
#
#   bash configs/quickstart.sh [DIRECTORY]
#
# About five minutes on 2 CPU cores. Run it from the root of the checkout.
set -euo pipefail
run=${1:-/tmp/cmlm_quickstart}

python -m cmlm.train --flagfile=configs/quickstart.flags --model_dir="$run"
python -m export.tfhub --model_dir="$run" --export_dir="${run}_export" \
    --seq_length=64 --overwrite
python -m cmlm.encode --model="${run}_export" --input="$run/text/python-docs.txt" \
    --query="Return the number of elements in the list." \
    --query="The file could not be opened for reading." \
    --query="Compute the mean along the given axis."
