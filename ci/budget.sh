#!/usr/bin/env bash
# The steps of the action (action.yml): lowers the programs of a repository at two commits and checks their budget.
#
# MEMPLAN         the command                              (memplan)
# BUDGET          the budget, relative to the repository   (memplan.toml)
# BUILD           a command that writes the modules that the budget names, run at both commits (none: they are committed)
# BASE            the commit to compare with               (none: no comparison)
# OUT             a folder for comment.md, annotations.sarif, budget.json and pages/
#
# Run in the repository. The exit status is that of `memplan budget`: 3 over a limit, 5 grown by more than allowed.
set -euo pipefail
memplan=${MEMPLAN:-memplan}
budget=${BUDGET:-memplan.toml}
out=${OUT:?a folder for the results}
mkdir -p "$out"

build() {
  if [ -n "${BUILD:-}" ]; then bash -euo pipefail -c "$BUILD"; fi
}

build
base=()
if [ -n "${BASE:-}" ]; then
  worktree=$(mktemp -d)/base
  git worktree add --quiet --detach "$worktree" "$BASE"
  trap 'git worktree remove --force "$worktree"' EXIT
  # A program that the base cannot lower yet is new.
  (cd "$worktree" && build) || echo "note: the programs of $BASE could not be made" >&2
  base=(--base "$worktree/$(dirname "$budget")")
fi

status=0
"$memplan" budget "$budget" "${base[@]}" --markdown "$out/comment.md" --sarif "$out/annotations.sarif" --pages "$out/pages" \
  --format json -o "$out/budget.json" || status=$?
if [ -f "$out/comment.md" ]; then
  cat "$out/comment.md" >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
fi
echo "status=$status" >> "${GITHUB_OUTPUT:-/dev/null}"
exit "$status"
