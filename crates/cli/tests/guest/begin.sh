# What every script in the guest begins with. PORT is where the server listens on the host, HOW what nbd-client is told.
set -eu

attach() {
    # shellcheck disable=SC2086 # words
    /programs/nbd-client 10.0.2.2 "$PORT" /dev/nbd0 -N floe $HOW >/dev/null
    [ "$(blockdev --getsize64 /dev/nbd0)" = $((96 << 20)) ]
}

detach() {
    /programs/nbd-client -d /dev/nbd0 >/dev/null
}

# From here on reads come from the server, not from the guest's memory.
forget() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

# The tree as the host packed it, and the files of the exercises given.
check_files() {
    forget
    (cd /mnt/tree && sha256sum -c /files/tree.sums >/tmp/sums) || { grep -v OK /tmp/sums; exit 1; }
    for seed in "$@"; do
        chroot /mnt/tree /exercise check "/random$seed" "$seed"
    done
}

check_system() {
    umount /mnt
    /programs/e2fsck -fn /dev/nbd0 >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
}

# A file system with a file tree, and a program compiled there, by a compiler that runs from there.
build() {
    /programs/mke2fs -q -t ext4 /dev/nbd0 88M
    mount -t ext4 -o discard /dev/nbd0 /mnt
    mkdir /mnt/tree
    tar -C /mnt/tree -xf /files/tree.tar
    cp -r /lib /lib64 /files/exercise.c /mnt/tree
    cp /lib64/* /mnt/tree/lib/x86_64-linux-gnu # where the linker seeks what it is told to start programs with
    chroot /mnt/tree tcc exercise.c -o exercise
}
