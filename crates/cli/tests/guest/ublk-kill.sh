# Servers are killed, end in good order and are begun again, or have their program replaced, under load.
attach --write back
# A disk keeps what is written, flushed or not, as long as the machine runs.
dd if=/files/floe of=$DEVICE bs=4k count=16 oflag=direct 2>/dev/null || fail 'it cannot be written'
kill -9 $SERVER
wait $SERVER
attach --write back
dd if=$DEVICE of=/tmp/found bs=4k count=16 iflag=direct 2>/dev/null || fail 'it cannot be read'
dd if=/files/floe of=/tmp/wanted bs=4k count=16 2>/dev/null
cmp /tmp/found /tmp/wanted || fail 'what was not flushed is lost'
/programs/mke2fs -q -t ext4 $DEVICE || fail 'no file system'
mount -t ext4 $DEVICE /mnt || fail 'it cannot be mounted'

# Each round changes a file at random and compares it; a request that fails or is lost ends it.
(
    round=0
    while [ ! -e /mnt/enough ]; do
        round=$((round + 1))
        rm -f /mnt/random$((round % 4))
        /files/exercise write /mnt/random$((round % 4)) $round || exit 1
        echo $round >/tmp/rounds
    done
) &
WRITER=$!
/files/load /mnt 4 >>/tmp/waits &
LOAD=$!

hundredths() {
    awk '{ print int($1 * 100) }' /proc/uptime
}

for kill in $(seq "$KILLS"); do
    before=$(cat /tmp/rounds 2>/dev/null || echo 0)
    for _ in $(seq 600); do # at least one round is complete since the last time
        [ "$(cat /tmp/rounds 2>/dev/null || echo 0)" = "$before" ] || break
        kill -0 $WRITER 2>/dev/null || fail 'the writer has failed'
        kill -0 $LOAD 2>/dev/null || fail 'the load has failed'
        sleep 0.1
    done
    : >/tmp/waits
    begun=$(hundredths)
    case $((kill % 4)) in
    0)
        how=upgraded
        /files/floe upgrade || fail 'it cannot be upgraded'
        kill -0 $SERVER || fail 'it is another process'
        ;;
    3)
        how=replaced
        kill $SERVER
        wait $SERVER || fail 'the server has failed'
        ;;
    *)
        how=killed
        kill -9 $SERVER
        wait $SERVER
        ;;
    esac
    ended=$(hundredths)
    [ $how = upgraded ] || attach --write back
    over=$(hundredths)
    sleep 1
    longest=$(sort -n /tmp/waits | tail -n 1)
    echo "$kill: $how in round $((before + 1)): ended in $(((ended - begun) * 10)) ms, there again in" \
        "$(((over - ended) * 10)) ms, the longest request took $longest ms"
    echo "$how $(((over - begun) * 10)) $longest" >>/tmp/times
done
touch /mnt/enough
wait $WRITER || fail 'the writer has failed'
wait $LOAD || fail 'the load has failed'
umount /mnt || fail 'it cannot be unmounted'
echo 3 >/proc/sys/vm/drop_caches
/programs/e2fsck -fn $DEVICE || fail 'the file system is damaged'
mount -t ext4 -o ro $DEVICE /mnt || fail 'it cannot be mounted again'
round=$(cat /tmp/rounds)
/files/exercise check /mnt/random$((round % 4)) "$round" || fail 'wrong data'
umount /mnt
dmesg | grep -i 'i/o error' && fail 'a request has failed'
detach
for how in killed replaced upgraded; do
    for column in 2 3; do
        what=$([ $column = 2 ] && echo 'there again after' || echo 'the longest request took')
        grep "^$how" /tmp/times | cut -d ' ' -f $column | sort -n | awk -v what="$how: $what" '{ ms[NR] = $1 }
            END { print what " min " ms[1] ", median " ms[int((NR + 1) / 2)] ", max " ms[NR] " ms, of " NR }'
    done
done
