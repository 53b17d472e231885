#!/usr/bin/env bash
# Time what a newcomer waits for, with an empty cache of pip: from the clone to a broker that is ready, the first message, the
# second start, and with --tests the test suite, twice. Prints a table in Markdown.
#
#   tools/newcomer.sh                on this machine
#   tools/newcomer.sh --chroot       in a clean Debian with Python, make and git only, which debootstrap makes (as root)
#   tools/newcomer.sh --tests        also `make test`, twice; in the chroot with a C compiler and Java
set -euo pipefail

is_chroot=
is_test=
for argument; do
    case $argument in
        --chroot) is_chroot=1 ;;
        --tests) is_test=1 ;;
        *) sed -n '2,7s/^# \?//p' "$0" >&2; exit 2 ;;
    esac
done

source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
root=
broker=
clean() {
    [ -z "$broker" ] || kill -KILL -- "-$broker" 2>/dev/null || true
    for place in proc dev/shm dev/pts dev; do
        [ -z "$root" ] || ! mountpoint -q "$root/$place" || umount "$root/$place"
    done
    rm -rf --one-file-system "$work"
}
trap clean EXIT

# Runs a command in the directory of the clone, in the chroot if there is one.
inside() {
    if [ -n "$root" ]; then
        chroot "$root" env "PIP_CACHE_DIR=/newcomer/cache" bash -c 'cd /newcomer; cd leveret 2>/dev/null || true; "$@"' - "$@"
    else
        (cd "$work/newcomer"; cd leveret 2>/dev/null || true; PIP_CACHE_DIR=$work/newcomer/cache "$@")
    fi
}

if [ -n "$is_chroot" ]; then
    root=$work/root
    packages=ca-certificates,git,make,python3,python3-venv
    [ -z "$is_test" ] || packages+=,gcc,libc6-dev,python3-dev,openjdk-17-jre-headless
    . /etc/os-release
    mirror=$(sed -n 's/^URIs: //p; s/^deb \(\[.*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
    echo "making a clean $VERSION_CODENAME with $packages" >&2
    debootstrap --variant=minbase --include="$packages" "$VERSION_CODENAME" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
        { tail "$work/debootstrap.log" >&2; exit 1; }
    mount --bind /dev "$root/dev"
    mount --bind /dev/pts "$root/dev/pts"
    mount --bind /dev/shm "$root/dev/shm"
    mount -t proc proc "$root/proc"
    # How this machine reaches the network and the package index.
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -e "$file" ] || cp -L "$file" "$root$file"
    done
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    mkdir "$root/newcomer"
    git clone -q --bare "$source" "$root/newcomer/origin"
    [ ! -d "${PIP_FIND_LINKS:-}" ] || { mkdir -p "$root$PIP_FIND_LINKS" && cp -r "$PIP_FIND_LINKS/." "$root$PIP_FIND_LINKS"; }
else
    mkdir "$work/newcomer"
    git clone -q --bare "$source" "$work/newcomer/origin"
fi
log=$work/log

seconds() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

# Starts the broker, and waits until it and its HTTP API are ready.
start() {
    : >"$log"
    setsid bash -c "$(declare -f inside); root='$root' work='$work'; inside make run ARGS='--port 0 --data-dir data'" >"$log" 2>&1 &
    broker=$!
    until grep -q 'HTTP API ready' "$log"; do
        kill -0 "$broker" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.05
    done
}

stop() {
    kill -INT -- "-$broker"
    wait "$broker" || true
    broker=
}

echo "| step | seconds |"
echo "| --- | --- |"
began=$EPOCHREALTIME
inside git clone -q origin leveret
start
echo "| from \`git clone\` to a broker and its HTTP API that are ready | $(seconds "$began") |"
url=$(sed -n 's/.*ready in [0-9.]* s: //p' "$log" | cut -d, -f1)
began=$EPOCHREALTIME
inside .venv/bin/python - "$url" <<'PROGRAM'
import sys

import leveret

with leveret.sync.connect(sys.argv[1]) as connection, connection.channel() as channel:
    channel.declare_queue("hello", durable=True)
    channel.publish("It works", "hello", persistent=True)
    message = channel.get("hello", no_ack=True)
    assert message is not None and message.text() == "It works"
PROGRAM
echo "| the first message | $(seconds "$began") |"
stop
began=$EPOCHREALTIME
start
echo "| the second start | $(seconds "$began") |"
stop
if [ -n "$is_test" ]; then
    for which in "\`make test\`, with its set-up" "\`make test\` again"; do
        began=$EPOCHREALTIME
        inside make test >"$log" 2>&1 || { tail -n 60 "$log" >&2; exit 1; }
        echo "| $which: $(tail -n 1 "$log" | tr -d '=' | xargs) | $(seconds "$began") |"
    done
fi
