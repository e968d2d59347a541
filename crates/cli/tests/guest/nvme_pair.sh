# Two servers of one image are two paths to one disk, of which one can be used at a time: SECOND is the port of the other.
# A load on the raw disk and one on a file system go on, whichever server it is.
connect() { # PORT
    nvme_to connect -s "$1" -n "$NAME" -i 2 --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=600 >/dev/null
}

connect "$PORT"
connect "$SECOND"
until_there /dev/nvme0n1
[ ! -b /dev/nvme1n1 ] # it is the same disk
cd /sys/class/nvme-subsystem/nvme-subsys0

is_used() { # PATH: whether it is there and serves
    [ "$(cat "nvme$1/state" 2>/dev/null)" = live ] && [ "$(cat "nvme$1/nvme0c$1n1/ana_state" 2>/dev/null)" = optimized ]
}

until_used() { # PATH
    for _ in $(seq 1200); do
        if is_used "$1" && ! is_used $((1 - $1)); then return 0; fi
        sleep 0.1
    done
    echo "path $1 does not serve:"
    grep . nvme?/state nvme?/nvme0c?n1/ana_state
    exit 1
}

until_used 0
/programs/mke2fs -q -t ext4 /dev/nvme0n1 16M
mount -t ext4 /dev/nvme0n1 /mnt

# Both end at the first error and at the first wrong byte.
counted() { # NAME COMMAND…: the command with 1, 2 and so on, counted
    name=$1 rounds=0
    shift
    echo 0 >"/tmp/$name"
    while [ ! -e /tmp/done ]; do
        rounds=$((rounds + 1))
        "$@" $rounds || { echo "$name: round $rounds has failed"; exit 1; }
        echo $rounds >"/tmp/$name.new"
        mv "/tmp/$name.new" "/tmp/$name"
    done
}
files() { # ROUND: a file is written and read again, and so is an older one
    at=/mnt/file$(($1 % 8))
    head -c $(($1 % 5 * 70001 + 100000)) /dev/urandom >/tmp/content
    cp /tmp/content "$at"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    cmp /tmp/content "$at"
    (cd /mnt && sha256sum "file$(($1 % 8))") >"/tmp/sum$(($1 % 8))"
    [ "$1" -lt 8 ] || (cd /mnt && sha256sum -c "/tmp/sum$((($1 + 1) % 8))" >/dev/null)
}
counted raw /files/blocks /dev/nvme0n1 20 4 60 &
raw=$!
counted files files &
files=$!

goes_on() {
    for load in raw files; do
        before=$(cat /tmp/$load)
        for _ in $(seq 1200); do
            [ "$(cat /tmp/$load)" -lt $((before + 3)) ] || continue 2
            kill -0 $raw
            kill -0 $files
            sleep 0.1
        done
        echo "the load hangs"
        exit 1
    done
}

for path in 0 1 0 1; do
    until_used $path
    goes_on
    echo "by path $path"
done
touch /tmp/done
wait $raw
wait $files
cd /
umount /mnt
/programs/e2fsck -fn /dev/nvme0n1 >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
detach
echo "all is as it was written"
