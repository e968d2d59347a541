# The program of a server is replaced while the device is in use, by a mount and without one.
PROGRAM=/tmp/program
cp /files/floe $PROGRAM
attach --write back
begun=$(cut -d ' ' -f 22 /proc/$SERVER/stat)
exec 9<$DEVICE # in use, but not so that the kernel would keep another from having it to itself
dd if=/files/floe of=$DEVICE bs=4k count=16 oflag=direct 2>/dev/null || fail 'it cannot be written'

# One that does not take the settings is refused, and the server goes on.
printf '#!/bin/sh\necho "no such setting" >&2\nexit 2\n' >/tmp/wrong
chmod +x /tmp/wrong
mv $PROGRAM /tmp/kept
mv /tmp/wrong $PROGRAM
/files/floe upgrade 2>/tmp/refused && fail 'a program that refuses the settings was taken'
grep -q 'no such setting' /tmp/refused || fail "$(cat /tmp/refused)"
dd if=$DEVICE of=/tmp/found bs=4k count=16 iflag=direct 2>/dev/null || fail 'it cannot be read'

old=$(stat -L -c %i /proc/$SERVER/exe)
cp /tmp/kept $PROGRAM.new
rm /tmp/kept
mv $PROGRAM.new $PROGRAM
/files/floe upgrade || fail 'it cannot be upgraded'
kill -0 $SERVER || fail 'it is another process'
[ "$(cut -d ' ' -f 22 /proc/$SERVER/stat)" = "$begun" ] || fail 'it is another process of the same number'
[ "$(stat -L -c %i /proc/$SERVER/exe)" != "$old" ] || fail 'it has the same program'
[ "$(stat -L -c %i /proc/$SERVER/exe)" = "$(stat -c %i $PROGRAM)" ] || fail 'it has another program'
dd of=/tmp/found bs=4k count=16 <&9 2>/dev/null || fail 'the open device is gone'
dd if=/files/floe of=/tmp/wanted bs=4k count=16 2>/dev/null
cmp /tmp/found /tmp/wanted || fail 'other data than was written'
exec 9<&-
[ "$(cat /sys/block/ublkb0/queue/fua)" = 1 ] || fail 'another device'

# A mounted file system goes on.
/programs/mke2fs -q -t ext4 $DEVICE || fail 'no file system'
mount -t ext4 $DEVICE /mnt || fail 'it cannot be mounted'
cp /files/exercise /mnt
/files/floe upgrade || fail 'it cannot be upgraded again'
cmp /files/exercise /mnt/exercise || fail 'other data than was written'
umount /mnt || fail 'it cannot be unmounted'
detach
