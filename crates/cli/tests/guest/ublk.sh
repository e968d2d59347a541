attach --write back
grep -q 'write back' /sys/block/ublkb0/queue/write_cache || fail 'it has no volatile cache'
[ "$(cat /sys/block/ublkb0/queue/fua)" = 1 ] || fail 'it has no FUA'
[ "$(cat /sys/block/ublkb0/queue/physical_block_size)" = 4096 ] || fail 'another sector size'
/programs/mke2fs -q -t ext4 $DEVICE || fail 'no file system'
mount -t ext4 -o discard $DEVICE /mnt || fail 'it cannot be mounted'

/files/floe detach $DEVICE 2>/tmp/refused && fail 'a mounted device was detached'
grep -q 'is in use: mounted at /mnt' /tmp/refused || fail "$(cat /tmp/refused)"

/files/exercise write /mnt/random1 1 || fail 'wrong data'
/programs/fallocate -l 8M /mnt/zeros && /programs/fallocate -z -l 8M /mnt/zeros || fail 'no zeroes'
rm /mnt/zeros
sync

# It ends in good order and leaves the mounted device, which the next server takes over.
kill $SERVER
wait $SERVER || fail 'the server has failed'
attach --write back
/files/exercise check /mnt/random1 1 || fail 'wrong data after another server'
umount /mnt || fail 'it cannot be unmounted'
echo 3 >/proc/sys/vm/drop_caches
/programs/e2fsck -fn $DEVICE || fail 'the file system is damaged'
detach

# The device of a server that does not come back is given up.
attach --write back
kill -9 $SERVER
wait $SERVER
[ "$(readlink -f $NAME)" = $DEVICE ] || fail 'the device that waits has lost its name'
/files/floe detach $NAME || fail 'a device that waits cannot be detached'
gone

# What the cache has kept is there again.
attach --write back
mount -t ext4 -o ro $NAME /mnt || fail 'it cannot be mounted again'
/files/exercise check /mnt/random1 1 || fail 'wrong data after another session'
umount /mnt
/files/floe flush || fail 'no flush'
detach
