# Shared by the tests with real clients: brings a rack up in a folder of its own and ends it whatever happens.
# A test exits 0 (passed), 77 (skipped, after a line `SKIP name: reason`) or anything else (failed).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rackweave=${RACKWEAVE_BIN:-$here/target/release/rackweave}
name=$(basename "$0")
work=$(mktemp -d "${TMPDIR:-/tmp}/rackweave-$name.XXXXXX")
data=$work/data
sock=$work/nbd.sock
rack_pid= watchdog=

cleanup() {
    local status=$?
    kill "$watchdog" 2>/dev/null || true
    if [ -n "$rack_pid" ]; then kill -9 "$rack_pid" 2>/dev/null || true; wait "$rack_pid" 2>/dev/null || true; fi
    if [ $status -ne 0 ] && [ $status -ne 77 ] && [ -e "$work/up.log" ]; then
        echo "--- last lines of the rack's log"; tail -n 20 "$work/up.log"
    fi
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT

# `grep -q` ends at the first match. A program that then writes on fails, and with pipefail its pipeline. -c reads all.
grep() {
    local args=() quiet= a
    for a in "$@"; do
        [[ $a =~ ^-[a-zA-Z]*q[a-zA-Z]*$ ]] && { quiet=1; a=${a/q/c}; }
        args+=("$a")
    done
    if [ -n "$quiet" ]; then command grep "${args[@]}" >/dev/null; else command grep "${args[@]}"; fi
}

need() { # need COMMAND...: skip by name when one is missing
    for c in "$@"; do
        command -v "$c" >/dev/null 2>&1 || { echo "SKIP $name: $c is not installed"; exit 77; }
    done
}

# Nothing ever comes out of it. One for all pauses: a process for each would use up the process ids of a long test, and bash
# waits for ever for one that it takes for another's.
exec {never}<> <(:)
pause() { read -rt "$1" -u "$never" || true; } # pause SECONDS

# Whoever ends a test that hangs does it after ten minutes: before that, who waits for what is printed.
(
    trap - EXIT
    pause 540
    echo "--- $name still runs after $SECONDS s; its processes are"
    ps -eo pid,ppid,stat,etimes,wchan:24,args | grep -F -e "$work" -e "$0" | grep -v 'grep -F' || true
    if [ -e "$data/rack.toml" ]; then timeout 20 "$rackweave" status --data "$data" || true; fi
) &
watchdog=$!
disown

fail() { echo "$name: $*" >&2; exit 1; }

uri() { echo "nbd+unix:///$1?socket=$sock"; }

wait_for() { # wait_for SECONDS COMMAND...: until the command succeeds
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        kill -0 "$rack_pid" 2>/dev/null || return 1
        pause 0.02
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

# A rack on hosts in namespaces (`up --netns`): needs root, its tools, and for a data plane in the kernel BPF.
need_netns() { # need_netns DATA_PLANE
    need ip ethtool nft nsenter
    [ "$(id -u)" = 0 ] || { echo "SKIP $name: $1: needs root"; exit 77; }
    "$rackweave" up --netns --data-plane "$1" --data "$work/probe" --ssd-size 64M >"$work/probe.out" 2>&1 &
    rack_pid=$!
    if wait_for 60 grep -q ready "$work/probe.out"; then
        rack_kill
    elif kill -0 $rack_pid 2>/dev/null; then
        fail "a rack in namespaces did not come up within a minute"
    else
        wait $rack_pid || true
        rack_pid=
        cat "$work/probe.out"
        grep -E 'network namespaces|switch in the kernel' "$work/probe.out" >"$work/why" || fail "a rack in namespaces ended at once"
        echo "SKIP $name: $1: $(head -n1 "$work/why")"
        exit 77
    fi
    rm -rf "$work/probe"
}

inside() { # inside NAMESPACE COMMAND...: switch, far, or a node's host
    local path; path=$(awk -v n="$1" '$1 == n { print $2 }' "$data/namespaces")
    nsenter --net="$path" "${@:2}"
}

pid_of() { # pid_of NODE: of its process
    rw status --json | python3 -c 'import json,sys
print(next(p["pid"] for p in json.load(sys.stdin)["processes"] if p["name"] == sys.argv[1]))' "$1"
}

all_serve() { # every process answers and every vSSD serves
    rw status --json | python3 -c 'import json,sys
s = json.load(sys.stdin)
v = [v for x in s["servers"] for v in x["vssds"]]
sys.exit(not (v and all(v["serving"] for v in v) and all(p["error"] is None for p in s["processes"]) and len(v) == 3 * len(s["sets"])))'
}

black_hole() { # black_hole PERCENT: of all UDP and TCP flows between the two racks, up to 50: those by u0, one of the two links, both ways
    inside far nft -f - <<N
table netdev hole {
    chain in { type filter hook ingress device u0 priority -500; meta l4proto { tcp, udp } jhash ip saddr . ip daddr . th sport mod 1000 seed 1 < $((20 * $1 - 1)) drop; }
    chain out { type filter hook egress device u0 priority -500; meta l4proto { tcp, udp } jhash ip saddr . ip daddr . th sport mod 1000 seed 2 < $((20 * $1 - 1)) drop; }
}
N
}
mend() { inside far nft delete table netdev hole; }
