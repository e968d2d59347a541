# The namespace is used without digests and with them, as a disk and below a file system.
nvme_to discover | grep -q "subnqn: *$NAME"
for how in "" --hdr-digest --data-digest "--hdr-digest --data-digest"; do
    # shellcheck disable=SC2086 # words
    attach $how
    [ "$(cat /sys/class/nvme/nvme0/queue_count)" = 3 ] # with the admin queue
    [ "$(blockdev --getsize64 /dev/nvme0n1)" = $((SIZE_MIB << 20)) ]
    /files/blocks /dev/nvme0n1 0 8 150 1 &
    /files/blocks /dev/nvme0n1 8 8 150 2
    wait $!
    detach
done

attach
compare() { # BLOCKS FILE: with the beginning of the namespace
    /programs/nvme compare /dev/nvme0n1 -s 0 -c $(($1 - 1)) -z $(($1 * 512)) -d "$2" 2>&1
}
head -c 65536 /dev/urandom >/tmp/same
{ head -c 65024 /tmp/same; head -c 512 /dev/zero; } >/tmp/other
dd if=/tmp/same of=/dev/nvme0n1 bs=64k oflag=direct 2>/dev/null
compare 8 /tmp/same
compare 128 /tmp/same
compare 127 /tmp/other
compare 128 /tmp/other | grep 285 # status of a comparison that fails
/programs/mke2fs -q -t ext4 /dev/nvme0n1
mount -t ext4 -o discard /dev/nvme0n1 /mnt
for at in 1 2 3 4 5 6 7 8; do
    head -c $((at * 300007)) /dev/urandom >/mnt/file$at
done
(cd /mnt && sha256sum file* >/tmp/sums)
rm /mnt/file3
fstrim /mnt
sed -i /file3/d /tmp/sums
forget
(cd /mnt && sha256sum -c /tmp/sums >/tmp/checked) || { cat /tmp/checked; exit 1; }
umount /mnt
detach

attach --hdr-digest --data-digest
/programs/e2fsck -fn /dev/nvme0n1 >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount -t ext4 /dev/nvme0n1 /mnt
(cd /mnt && sha256sum -c /tmp/sums >/tmp/checked) || { cat /tmp/checked; exit 1; }
umount /mnt
/programs/blkdiscard -f /dev/nvme0n1
detach
echo "all is as it was written"
