# What every script with a local device begins with: the server, and ways to begin it again. Its disks are /dev/vda, the
# volume unless BACKING names another, and /dev/vdb, the cache.
set -u
DEVICE=/dev/ublkb0
PROGRAM=/files/floe
NAME=/dev/floe/pictures

fail() {
    echo "$1"
    cat /tmp/log
    dmesg | tail -n 30
    exit 1
}

attach() {
    rm -f /tmp/device
    $PROGRAM attach --backing "${BACKING:-/dev/vda}" --cache /dev/vdb --volume pictures --threads 2 --state-dir /tmp/state \
        "$@" >/tmp/device 2>>/tmp/log &
    SERVER=$!
    for _ in $(seq 600); do
        [ ! -s /tmp/device ] || break
        kill -0 $SERVER 2>/dev/null || fail 'the server has ended'
        sleep 0.1
    done
    [ "$(cat /tmp/device)" = $DEVICE ] || fail 'the device is not there'
    [ "$(readlink -f $NAME)" = $DEVICE ] || fail 'the device has not its name'
    [ "$(cat /run/floe/ublkb0.udev)" = FLOE_VOLUME=pictures ] || fail 'udev is not told of the name'
}

detach() {
    /files/floe detach $DEVICE || fail 'it cannot be detached'
    wait $SERVER || fail 'the server has failed'
    gone
}

gone() {
    [ ! -e $DEVICE ] || fail 'the device is still there'
    [ ! -L $NAME ] || fail 'its name is still there'
    [ ! -e /run/floe/ublkb0.udev ] || fail 'udev is still told of its name'
}
