# Less than elsewhere: ciphers take long in an emulation.
attach
build
umount /mnt
detach
attach
mount -t ext4 /dev/nbd0 /mnt
check_files
check_system
detach
