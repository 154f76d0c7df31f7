#!/usr/bin/env bash
# Fuzzes every target in turn until time is up, one process at a time, at the lowest priority.
#
# usage: scripts/fuzz_evening.sh TIME [TARGET]...       e.g. 8h, or 90m generated broken_plan
#
# Needs cargo-fuzz. Findings are kept in fuzz/artifacts/TARGET; the corpus in fuzz/corpus/TARGET grows, and is minimised
# at the end. After each turn a line goes to fuzz/evening.tsv: target, CPU
# seconds, executions, coverage, findings so far.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
export RUSTC_BOOTSTRAP=1
duration=$1; shift
case $duration in
  *h) seconds=$((${duration%h} * 3600)) ;;
  *m) seconds=$((${duration%m} * 60)) ;;
  *) seconds=$duration ;;
esac
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(basename --suffix=.rs --multiple fuzz_targets/*.rs)
turn=${TURN:-300}
bin=${FUZZ_BIN:-}
if [ -z "$bin" ]; then
  CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo fuzz build -s none --target-dir target
  bin=$(find target -path '*/release/parse_text' -type f | head -1)
  bin=$(dirname "$bin")
fi

# Case files of the tests are good to begin with where a target reads text.
more_seeds() {
  case $1 in
    parse_text | program_text) echo ../tests/hlo/* ../examples ;;
  esac
}

end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ]; do
  for target in "${targets[@]}"; do
    [ $SECONDS -lt $end ] || break
    mkdir -p "corpus/$target" "artifacts/$target"
    log=$(mktemp)
    begin=$SECONDS
    # One finding ends a process; the rest of the turn goes to another one.
    while [ $((SECONDS - begin)) -lt "$turn" ]; do
      started=$SECONDS
      # shellcheck disable=SC2046
      TIMEFORMAT=%U
      cpu=$({ time nice -n 19 "$bin/$target" -max_total_time=$((turn - SECONDS + begin)) -timeout=120 \
        -rss_limit_mb=3000 -max_len=8192 -print_final_stats=1 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" "seeds/$target" $(more_seeds "$target") >"$log" 2>&1; } 2>&1 || true)
      executions=$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")
      coverage=$(grep -ao 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2 || true)
      printf '%s\t%s\t%s\t%s\t%s\n' "$target" "$cpu" "${executions:-0}" "${coverage:-0}" \
        "$(find "artifacts/$target" -type f | wc -l)" >>evening.tsv
      # What ends at once would end at once again.
      [ $((SECONDS - started)) -ge 20 ] || break
    done
    tail -40 "$log" >"artifacts/$target.log"
    rm "$log"
  done
done

for target in "${targets[@]}"; do
  mkdir -p "corpus/$target.smaller"
  "$bin/$target" -merge=1 "corpus/$target.smaller" "corpus/$target" >/dev/null 2>&1 || true
  rm -r "corpus/$target" && mv "corpus/$target.smaller" "corpus/$target"
done
awk -F'\t' '{ s[$1] += $2; n[$1] += $3; c[$1] = $4; f[$1] = $5 }
  END { for (t in s) printf "%-14s %7d CPU seconds %12d executions, coverage %6d, %d findings\n", t, s[t], n[t], c[t], f[t] }' evening.tsv | sort
