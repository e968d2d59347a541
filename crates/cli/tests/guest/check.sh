# What another guest built is there, and can be built upon.
attach
/programs/e2fsck -fn /dev/nbd0 >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount -t ext4 /dev/nbd0 /mnt
check_files 1 2
chroot /mnt/tree tcc exercise.c -o again
chroot /mnt/tree /again write /random3 3
check_files 1 2 3
check_system
detach
