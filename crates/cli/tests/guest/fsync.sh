# Writes files and makes each safe by itself, saying which it begins and, with its sum, which is safe; until the server is
# no more. A volume without a file system gets one.
attach
if ! mount -t ext4 -o discard /dev/nbd0 /mnt 2>/dev/null; then
    /programs/mke2fs -q -t ext4 /dev/nbd0
    mount -t ext4 -o discard /dev/nbd0 /mnt
fi

# What nobody waits for is on its way too.
head -c $((3 << 20)) /dev/urandom >/tmp/noise
(while for at in 1 2 3 4; do cp /tmp/noise "/mnt/noise$at" && rm "/mnt/noise$at"; done; do :; done) 2>/dev/null &

number=0
while :; do
    name=file$((number * 7 % 40)) # each again after a while
    number=$((number + 1))
    head -c $((1 + number * number * 4099 % 300000)) /dev/urandom >/tmp/new
    echo "begin $name"
    dd if=/tmp/new of="/mnt/$name" bs=64k conv=fsync 2>/dev/null || break
    echo "safe $name $(sha256sum </tmp/new)"
done
