# A file system is made, used in every way, checked, and found again after a disconnect.
attach
build
chroot /mnt/tree /exercise write /random1 1 &
chroot /mnt/tree /exercise write /random2 2 &
wait $!
wait

cp -r /mnt/tree/usr/include /mnt/copy
sync
rm -r /mnt/copy
fstrim /mnt
/programs/fallocate -l 8M /mnt/zeroes
/programs/fallocate -z -l 8M /mnt/zeroes
check_files 1 2
cmp -n $((8 << 20)) /mnt/zeroes /dev/zero
check_system

# Behind the file system there is room to write to the device itself.
yes floe | dd of=/dev/nbd0 bs=4k count=1024 seek=$((90 << 8)) iflag=fullblock oflag=direct 2>/dev/null
/programs/blkdiscard -z -o $(((90 << 20) + 4096)) -l $((1 << 20)) /dev/nbd0
/programs/blkdiscard -o $((92 << 20)) -l $((1 << 20)) /dev/nbd0
forget
yes floe | head -c $((4 << 20)) >/tmp/wanted
dd if=/dev/zero of=/tmp/wanted bs=4k seek=1 count=256 conv=notrunc 2>/dev/null
dd if=/dev/nbd0 of=/tmp/found bs=1M skip=90 count=2 2>/dev/null
cmp -n $((2 << 20)) /tmp/wanted /tmp/found
dd if=/dev/nbd0 of=/tmp/found bs=1M skip=93 count=1 2>/dev/null
tail -c $((1 << 20)) /tmp/wanted | cmp - /tmp/found

detach
attach
mount -t ext4 /dev/nbd0 /mnt
check_files 1 2
check_system
detach
