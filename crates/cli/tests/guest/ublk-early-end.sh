# A server that is told to end while it begins a device does so in good order, at once.
: >/tmp/log

hear() { # WORDS: waits until the second server has logged them
    for _ in $(seq 1200); do
        ! grep -q "$1" /tmp/log2 || return 0
        kill -0 "$SECOND" 2>/dev/null || fail "the second server has ended: $(cat /tmp/log2)"
        sleep 0.1
    done
    fail "the second server does not say: $1: $(cat /tmp/log2)"
}

begin() { # NUMBER BACKING: a server of a volume that several may read
    /files/floe attach --backing "$2" --read-only --cache memory:8MiB --volume pictures --threads 2 \
        --state-dir "/tmp/state$1" --admin "unix:/tmp/admin$1" --listen "nbd+unix:///?socket=/tmp/nbd$1" >"/tmp/device$1" 2>"/tmp/log$1" &
}

attached() { # NUMBER [LINE]
    for _ in $(seq 1200); do
        ! grep -q "${2:-$DEVICE}" "/tmp/device$1" || return 0
        sleep 0.1
    done
    fail "there is no device: $(cat "/tmp/log$1")"
}

# It waits for another server of the volume to end.
begin 1 /dev/vda
FIRST=$!
attached 1
begin 2 /dev/vda
SECOND=$!
hear 'waiting for'
kill -TERM $SECOND
wait $SECOND || fail "it did not end in good order while it waited: $(cat /tmp/log2)"
[ -b $DEVICE ] || fail 'it has ended the device of the other server'
kill $FIRST
wait $FIRST || fail 'the first server has failed'
gone

# The volume behind an NBD client, whose server can be made to hang.
/files/floe serve --backing /dev/vda --cache memory:8MiB --volume pictures --threads 1 --state-dir /tmp/state3 \
    --admin unix:/tmp/admin3 --listen 'nbd+unix:///?socket=/tmp/nbd3' >/tmp/device3 2>/tmp/log3 &
BACKING=$!
attached 3 nbd+unix
/programs/nbd-client -unix /tmp/nbd3 /dev/nbd0 -N pictures >/dev/null || fail 'no backing device'
both() { # two servers of the volume behind it, the second of which waits
    begin 1 /dev/nbd0
    FIRST=$!
    attached 1
    begin 2 /dev/nbd0
    SECOND=$!
    hear 'waiting for'
}

# It waits for a server that has stopped the device, and cannot come to its end.
both
kill -STOP $BACKING
kill $FIRST
for _ in $(seq 600); do
    [ -b $DEVICE ] || break
    sleep 0.1
done
[ ! -b $DEVICE ] || fail "the first server does not stop its device: $(cat /tmp/log1)"
sleep 1 # it has looked again
kill -TERM $SECOND
hear 'ending dirty_bytes' # it flushes the volume, as the other does
kill -CONT $BACKING
wait $SECOND || fail "it did not end in good order while it waited for the other's end: $(cat /tmp/log2)"
wait $FIRST || fail "the first server has failed: $(cat /tmp/log1)"
gone

# The kernel reads the partition table from a backing device that hangs.
both
kill -STOP $SECOND
kill $FIRST
wait $FIRST || fail "the first server has failed: $(cat /tmp/log1)"
gone
kill -STOP $BACKING
kill -CONT $SECOND
for _ in $(seq 600); do
    [ ! -b $DEVICE ] || break
    sleep 0.1
done
[ -b $DEVICE ] || fail "the second server does not begin: $(cat /tmp/log2)"
! grep -q $DEVICE /tmp/device2 || fail 'the partition table was read'
kill -TERM $SECOND
for _ in $(seq 300); do
    [ -b $DEVICE ] || break
    sleep 0.1
done
there=$([ -b $DEVICE ] && echo 'its device stays')
kill -CONT $BACKING
[ -z "$there" ] || fail "told to end, $there: $(cat /tmp/log2)"
wait $SECOND || fail "it did not end in good order while the kernel read: $(cat /tmp/log2)"
gone
/programs/nbd-client -d /dev/nbd0 >/dev/null
kill $BACKING
wait $BACKING || fail 'the backing server has failed'
