# What every script with a local device begins with: the server, and ways to begin it again. Its disks are /dev/vda, the
# volume, and /dev/vdb, the cache.
set -u
DEVICE=/dev/ublkb0

fail() {
    echo "$1"
    cat /tmp/log
    dmesg | tail -n 30
    exit 1
}

attach() {
    rm -f /tmp/device
    /files/floe attach --backing /dev/vda --cache /dev/vdb --threads 2 --state-dir /tmp/state "$@" \
        >/tmp/device 2>>/tmp/log &
    SERVER=$!
    for _ in $(seq 600); do
        [ ! -s /tmp/device ] || break
        kill -0 $SERVER 2>/dev/null || fail 'the server has ended'
        sleep 0.1
    done
    [ "$(cat /tmp/device)" = $DEVICE ] || fail 'the device is not there'
}

detach() {
    /files/floe detach $DEVICE || fail 'it cannot be detached'
    wait $SERVER || fail 'the server has failed'
    [ ! -e $DEVICE ] || fail 'the device is still there'
}
