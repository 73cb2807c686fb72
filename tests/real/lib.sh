# Shared by the tests with real clients: brings a rack up in a folder of its own and ends it whatever happens.
# A test exits 0 (passed), 77 (skipped, after a line `SKIP name: reason`) or anything else (failed).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rackweave=${RACKWEAVE_BIN:-$here/target/release/rackweave}
name=$(basename "$0")
work=$(mktemp -d "${TMPDIR:-/tmp}/rackweave-$name.XXXXXX")
data=$work/data
sock=$work/nbd.sock
rack_pid=

cleanup() {
    local status=$?
    if [ -n "$rack_pid" ]; then kill -9 "$rack_pid" 2>/dev/null || true; wait "$rack_pid" 2>/dev/null || true; fi
    if [ $status -ne 0 ] && [ $status -ne 77 ] && [ -e "$work/up.log" ]; then
        echo "--- last lines of the rack's log"; tail -n 20 "$work/up.log"
    fi
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT

need() { # need COMMAND...: skip by name when one is missing
    for c in "$@"; do
        command -v "$c" >/dev/null 2>&1 || { echo "SKIP $name: $c is not installed"; exit 77; }
    done
}

fail() { echo "$name: $*" >&2; exit 1; }

uri() { echo "nbd+unix:///$1?socket=$sock"; }

wait_for() { # wait_for SECONDS COMMAND...: until the command succeeds
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        kill -0 "$rack_pid" 2>/dev/null || return 1
        read -rt 0.02 <> <(:) || true
    done
}

# RACKWEAVE_UP_ARGS, for instance --processes, is given to every `rackweave up` of these tests.
rack_up() { # rack_up ARGS...: starts a rack and waits until it serves
    : >"$work/ready"
    # shellcheck disable=SC2086
    "$rackweave" up --data "$data" --nbd "unix:$sock" ${RACKWEAVE_UP_ARGS:-} "$@" >"$work/ready" 2>>"$work/up.log" &
    rack_pid=$!
    wait_for 20 grep -q ready "$work/ready" || { cat "$work/up.log"; fail "the rack did not come up"; }
}

rack_down() { # clean stop
    kill -TERM "$rack_pid"
    wait "$rack_pid" || fail "the rack's exit status was $? after SIGTERM"
    rack_pid=
}

rack_kill() { kill -9 "$rack_pid"; wait "$rack_pid" 2>/dev/null || true; rack_pid=; }

rw() { "$rackweave" "$@" --data "$data"; }
