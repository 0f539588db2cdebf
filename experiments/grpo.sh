#!/bin/sh
# The paper's section 4.3 on the embedded model: equal wall-clock budgets for three kinds of rollouts, one after
# the other on an idle machine, then the three panels. Interrupted, the same command continues.
#   experiments/grpo.sh [OUT] [BUDGET] [options of `twotemp grpo`]
set -e
out=${1:-runs/grpo}
budget=${2:-10m}
[ $# -ge 2 ] && shift 2 || shift $#
for policy in ar ct:threshold=0.6 tct:threshold=0.6,t_pos=0.1; do
    twotemp grpo --model tiny --task countdown-3 --policy "$policy" --budget "$budget" --out "$out/${policy%%:*}" "$@"
done
twotemp report "$out/ar" "$out/ct" "$out/tct" --out "$out/report"
