# Namespaces come, grow and go while the host is connected.
attach
echo attached
until_there /dev/nvme0n2
/files/blocks /dev/nvme0n2 0 4 60 1
echo added
for _ in $(seq 600); do
    [ "$(blockdev --getsize64 /dev/nvme0n2)" = $((8 << 20)) ] && break
    sleep 0.1
done
[ "$(blockdev --getsize64 /dev/nvme0n2)" = $((8 << 20)) ]
/files/blocks /dev/nvme0n2 4 4 60 2
echo grown
for _ in $(seq 600); do
    [ -b /dev/nvme0n2 ] || break
    sleep 0.1
done
[ ! -b /dev/nvme0n2 ]
/files/blocks /dev/nvme0n1 0 4 60 3
detach
echo "all is as it was written"
