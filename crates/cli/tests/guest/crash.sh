# Says when all is safe, and goes on writing until the server is no more.
attach
build
chroot /mnt/tree /exercise write /random1 1
sync
echo synced
while chroot /mnt/tree /exercise write /random2 2 2>/dev/null; do :; done
