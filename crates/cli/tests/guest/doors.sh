# A cache over /dev/vda in /dev/vdb, and what is to be done with it. Before it stand CACHE, WRITE, OPTIONS of floe, LOAD,
# SEED and STEPS:
#
#   make            makes a new cache                  open          assembles the one that is there
#   load:LIFE:A:B   requests A to B of each process    probe:LIFE:N  N reads of each process
#   check           reads all of it back               drain         writes all dirty data to /dev/vda
#   flush           flushes the device                 note:NAME     prints the counts of both disks
#   judge:LIFE      compares what was read back with what that life wrote
set -u
VOLUME_SECTORS=$(cat /sys/block/vda/size)
CACHE_SECTORS=$(cat /sys/block/vdb/size)
METADATA_SECTORS=8192 # of dm-cache, in front of its data
CHUNK_SECTORS=128     # of dm-cache, as lvmcache chooses it

fail() {
    echo "doors: $1"
    [ ! -f /tmp/log ] || tail -n 20 /tmp/log
    dmesg | tail -n 20
    exit 1
}

wait_for() {
    for _ in $(seq 1200); do
        eval "$1" && return
        sleep 0.1
    done
    fail "not within 120 s: $1"
}

# Maps the device that has this name and this table.
mapped() {
    /files/dmsetup --noudevsync create "$1" --table "$2" || fail "no device $1"
    /files/dmsetup mknodes
}

make_none() { :; }
open_none() { DEVICE=/dev/vda; }
drain_none() { :; }

make_floe() { :; }
open_floe() {
    # shellcheck disable=SC2086 # several options
    /files/floe attach --backing /dev/vda --cache /dev/vdb --write "$WRITE" --state-dir /tmp/state $OPTIONS \
        >/tmp/device 2>>/tmp/log &
    SERVER=$!
    wait_for '[ -s /tmp/device ] || ! kill -0 $SERVER 2>/dev/null'
    DEVICE=$(cat /tmp/device)
    [ -b "$DEVICE" ] || fail 'the server has ended'
}
drain_floe() { /files/floe flush || fail 'no flush'; }

make_bcache() {
    local mode=''
    [ "$WRITE" = through ] || mode=--writeback
    # shellcheck disable=SC2086 # may be none
    /files/make-bcache --bucket 64k --block 4k $mode -B /dev/vda -C /dev/vdb >/dev/null || fail 'no bcache'
}
open_bcache() {
    echo /dev/vdb >/sys/fs/bcache/register || fail 'no cache'
    echo /dev/vda >/sys/fs/bcache/register || fail 'no volume'
    wait_for '[ -b /dev/bcache0 ]'
    # Slow media would make it go past the cache, and all media are slow in an emulation.
    for limit in /sys/fs/bcache/*-*/congested_*_threshold_us; do echo 0 >"$limit"; done
    DEVICE=/dev/bcache0
}
drain_bcache() {
    echo 0 >/sys/block/bcache0/bcache/writeback_percent
    echo 0 >/sys/block/bcache0/bcache/writeback_delay
    echo 1 >/sys/block/bcache0/bcache/writeback_running
    echo writethrough >/sys/block/bcache0/bcache/cache_mode
    wait_for 'grep -q clean /sys/block/bcache0/bcache/state'
}

table_of_dm_cache() { # MODE POLICY
    echo "0 $VOLUME_SECTORS cache /dev/mapper/metadata /dev/mapper/data /dev/vda $CHUNK_SECTORS 1 $1 $2 0"
}
make_dm_cache() { dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync 2>/dev/null; }
open_dm_cache() {
    mapped metadata "0 $METADATA_SECTORS linear /dev/vdb 0"
    mapped data "0 $((CACHE_SECTORS - METADATA_SECTORS)) linear /dev/vdb $METADATA_SECTORS"
    mapped cached "$(table_of_dm_cache "write$WRITE" smq)"
    DEVICE=/dev/mapper/cached
}
drain_dm_cache() {
    /files/dmsetup --noudevsync suspend cached
    /files/dmsetup --noudevsync reload cached --table "$(table_of_dm_cache "write$WRITE" cleaner)"
    /files/dmsetup --noudevsync resume cached
    # start, length, "cache", metadata block size, used/total, chunk, used/total, hits and misses of both kinds, ...
    wait_for '[ "$(/files/dmsetup status cached | awk "{ print \$14 }")" = 0 ]'
}

make_dm_writecache() { dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync 2>/dev/null; }
open_dm_writecache() {
    mapped cached "0 $VOLUME_SECTORS writecache s /dev/vda /dev/vdb 4096 0"
    DEVICE=/dev/mapper/cached
}
drain_dm_writecache() {
    /files/dmsetup --noudevsync message cached 0 flush || fail 'no flush'
    wait_for '/files/dmsetup status cached | awk "{ exit !(\$5 == \$6 && \$7 == 0) }"'
}

note() {
    local disk
    read -r up _ </proc/uptime
    for disk in vda vdb; do
        echo "note $1 $up $disk $(tr -s ' ' <"/sys/block/$disk/stat")"
    done
}

for device in /sys/bus/pci/devices/*; do # the memory that outlives this guest
    [ "$(cat "$device/vendor" "$device/device" | tr '\n' ' ')" = '0x1af4 0x1110 ' ] || continue
    echo 1 >"$device/enable"
    SHARED=$device/resource2
done
for step in $STEPS; do
    IFS=: read -r name first second third <<STEP
$step
STEP
    case $name in
        make) "make_$CACHE" && "open_$CACHE" ;;
        open) "open_$CACHE" ;;
        load) /files/doors load "$DEVICE" "$SHARED" "$LOAD" "$SEED" "$first" "$second" "$third" || fail 'the load has failed' ;;
        probe) /files/doors probe "$DEVICE" "$SHARED" "$LOAD" "$SEED" "$first" "$second" || fail 'the probe has failed' ;;
        check) /files/doors check "$DEVICE" "$SHARED" || fail 'it cannot be read back' ;;
        judge) /files/doors judge "$SHARED" "$LOAD" "$SEED" "$first" || fail 'no judgement' ;;
        drain) "drain_$CACHE" ;;
        flush) sync "$DEVICE" || fail 'no flush' ;;
        note) note "$first" ;;
        *) fail "unknown step $step" ;;
    esac
done
