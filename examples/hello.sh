#!/usr/bin/env bash
# Prints a greeting from Bash. Arguments arrive as variables:
#
#     belljar run examples/hello.sh --args '{"name": "Ada"}'
set -euo pipefail

echo "Hello, ${name:-whoever you are}, from Bash $BASH_VERSION, under glass."
echo "I am user $(id -u) on host $(uname -n), in $PWD."
if [ -w /usr/bin ]; then
  echo "I could write to /usr/bin: this is not a sandbox."
else
  echo "I cannot write to /usr/bin."
fi
