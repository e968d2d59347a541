attach --write back
/programs/mke2fs -q -t ext4 $DEVICE || fail 'no file system'
mount -t ext4 $DEVICE /mnt || fail 'it cannot be mounted'

# Each round changes a file at random and compares it; a request that fails or is lost ends it.
(
    round=0
    while [ ! -e /tmp/enough ]; do
        round=$((round + 1))
        rm -f /mnt/random$((round % 4))
        /files/exercise write /mnt/random$((round % 4)) $round || exit 1
        echo $round >/tmp/rounds
    done
) &
WRITER=$!

for kill in $(seq "$KILLS"); do
    before=$(cat /tmp/rounds 2>/dev/null || echo 0)
    for _ in $(seq 600); do # at least one round is complete since the last time
        [ "$(cat /tmp/rounds 2>/dev/null || echo 0)" = "$before" ] || break
        kill -0 $WRITER || fail 'the writer has failed'
        sleep 0.1
    done
    kill -9 $SERVER
    wait $SERVER
    attach --write back
    echo "killed $kill times, in round $((before + 1))"
done
touch /tmp/enough
wait $WRITER || fail 'the writer has failed'
umount /mnt || fail 'it cannot be unmounted'
echo 3 >/proc/sys/vm/drop_caches
/programs/e2fsck -fn $DEVICE || fail 'the file system is damaged'
mount -t ext4 -o ro $DEVICE /mnt || fail 'it cannot be mounted again'
round=$(cat /tmp/rounds)
/files/exercise check /mnt/random$((round % 4)) "$round" || fail 'wrong data'
umount /mnt
dmesg | grep -i 'i/o error' && fail 'a request has failed'
detach
