#!/usr/bin/env bash
# From nothing to an exported encoder, and neighbours before and after training.
#
#   bash configs/quickstart.sh [DIRECTORY]
#
# The text is the English documentation that Python itself carries. Every twentieth
# document is held out. In the held-out text, each first sentence searches the second
# sentences of all documents for its own: by the trained weights, by the untrained weights
# and by a bag of words. Two to four minutes on 2 CPU cores. Run this script from the root
# of the checkout.
set -euo pipefail
run=${1:-/tmp/cmlm_quickstart}
text=${run}_text
train=$text/train.txt test=$text/test.txt

# --------------------------------------------------------------------------- text
echo "collecting the English docstrings of this Python installation: up to a minute"
docs=$(TF_CPP_MIN_LOG_LEVEL=3 python -W ignore -c "
from cmlm.data import builtin
print(builtin.python_docs('$text'))")
awk -v train="$train" -v test="$test" \
    'BEGIN { RS = ""; ORS = "\n\n" } { print > (NR % 20 ? train : test) }' "$docs"

# ---------------------------------------------------------------- training, export
python -m cmlm.train --flagfile=configs/quickstart.flags --train_data="$train" \
    --model_dir="$run"
python -m export.tfhub --model_dir="$run" --export_dir="${run}_export" \
    --seq_length=24 --overwrite

# -------------------------------------------------- before and after, on held-out text
for model in "untrained:$run" "${run}_export"; do
    echo "--- $model"
    python -m cmlm.encode --model="$model" --input="$test" \
        --query="Return the number of elements in the list." \
        --query="The file could not be opened for reading." \
        --query="Compute the mean along the given axis."
done
python -m cmlm.evaluate --model="${run}_export" --model="untrained:$run" \
    --model="bow:$run" --data_dir="$text" --tasks=neighbours:test.txt
